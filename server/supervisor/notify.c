#include "supervisor/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un target;
static socklen_t target_len; /* 0: nobody listens */
static char target_name[sizeof target.sun_path];

void notify_init(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    size_t len = name != NULL ? strlen(name) : 0;
    if (len > 1 && len < sizeof target.sun_path && (name[0] == '/' || name[0] == '@')) {
        target.sun_family = AF_UNIX;
        memcpy(target.sun_path, name, len);
        memcpy(target_name, name, len);
        if (name[0] == '@') {
            target.sun_path[0] = '\0';
        }
        target_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    }
    unsetenv("NOTIFY_SOCKET");
}

void notify_send(const char *state)
{
    if (target_len == 0) {
        return;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        /* Never waits: a manager that does not read must not stop us. */
        sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&target, target_len);
        close(fd);
    }
}

void notify_share(bool on)
{
    if (on && target_len > 0) {
        setenv("NOTIFY_SOCKET", target_name, 1);
    } else {
        unsetenv("NOTIFY_SOCKET");
    }
}

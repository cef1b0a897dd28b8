/* The supervisor is the reaper of its whole family: what a worker started and did not live
 * to wait for (compilers, programs of endpoints) becomes our child. While we run they are
 * only waited for; nothing outlives the server. */
#include "supervisor/supervisor_private.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 100, ROUND_MS = 50 };

static pid_t parent_of(const char *pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    char line[512];
    int parent = 0;
    /* The name stands in brackets and may itself hold brackets and spaces. */
    const char *end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
    if (end == NULL || sscanf(end, ") %*c %d", &parent) != 1) {
        parent = 0;
    }
    fclose(file);
    return parent;
}

/* True when there were some. */
static bool kill_children(pid_t heir)
{
    bool found = false;
    DIR *processes = opendir("/proc");
    if (processes == NULL) {
        return false;
    }
    pid_t self = getpid();
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (isdigit((unsigned char)entry->d_name[0]) && pid != heir && parent_of(entry->d_name) == self) {
            kill(pid, SIGKILL);
            found = true;
        }
    }
    closedir(processes);
    return found;
}

void orphans_end(pid_t heir)
{
    /* Children of those that are killed become ours in turn: until there are none. A process
     * that hangs in the kernel is left to init. */
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pid;
        do {
            pid = waitpid(-1, NULL, WNOHANG);
        } while (pid > 0);
        if (pid < 0 && errno == ECHILD) {
            return;
        }
        if (!kill_children(heir) && heir > 0) {
            return;
        }
        poll(NULL, 0, round == 0 ? 1 : ROUND_MS);
    }
    log_warning("some processes that the site started could not be ended");
}

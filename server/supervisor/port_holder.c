/* The kernel lists listening sockets with their inodes, and each process's descriptors as
 * links to inodes; other users' processes show theirs to root alone. */
#include "supervisor/port_holder.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATE_LISTEN = 0x0A };

static unsigned long listening_inode(const char *table, uint16_t port)
{
    FILE *file = fopen(table, "re");
    if (file == NULL) {
        return 0;
    }
    char line[512];
    unsigned long found = 0;
    while (found == 0 && fgets(line, sizeof line, file) != NULL) {
        unsigned local_port;
        unsigned state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", &local_port,
                   &state, &inode) == 3 &&
            local_port == port && state == STATE_LISTEN) {
            found = inode;
        }
    }
    fclose(file);
    return found;
}

static bool process_has(const char *pid, const char *link)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return false;
    }
    bool found = false;
    for (struct dirent *entry = readdir(dir); entry != NULL && !found; entry = readdir(dir)) {
        char target[64];
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (len > 0) {
            target[len] = '\0';
            found = strcmp(target, link) == 0;
        }
    }
    closedir(dir);
    return found;
}

static void print_process(const char *pid, struct buffer *out)
{
    char path[64];
    char name[32] = "a program";
    snprintf(path, sizeof path, "/proc/%.20s/comm", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(name, sizeof name, file) != NULL) {
            name[strcspn(name, "\n")] = '\0';
        }
        fclose(file);
    }
    buffer_printf(out, " by %s (process %.20s)", name, pid);
}

void port_holder_print(uint16_t port, struct buffer *out)
{
    unsigned long inode = listening_inode("/proc/net/tcp6", port);
    if (inode == 0) {
        inode = listening_inode("/proc/net/tcp", port);
    }
    DIR *processes = inode != 0 ? opendir("/proc") : NULL;
    if (processes == NULL) {
        return;
    }
    char link[64];
    snprintf(link, sizeof link, "socket:[%lu]", inode);
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        if (isdigit((unsigned char)entry->d_name[0]) && process_has(entry->d_name, link)) {
            print_process(entry->d_name, out);
            break;
        }
    }
    closedir(processes);
}

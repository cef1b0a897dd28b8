#include "supervisor/program.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[PATH_MAX];
static char **arguments;

/* Is it the file that runs here? Then `at` becomes the path. */
static bool is_running(const char *at)
{
    struct stat running;
    struct stat named;
    if (stat("/proc/self/exe", &running) != 0 || stat(at, &named) != 0 || running.st_ino != named.st_ino ||
        running.st_dev != named.st_dev) {
        return false;
    }
    char directory[PATH_MAX];
    if (at[0] == '/') {
        return snprintf(path, sizeof path, "%s", at) < (int)sizeof path;
    }
    return getcwd(directory, sizeof directory) != NULL &&
           snprintf(path, sizeof path, "%s/%s", directory, at) < (int)sizeof path;
}

static bool search(const char *name)
{
    const char *list = getenv("PATH");
    while (list != NULL && *list != '\0') {
        size_t len = strcspn(list, ":");
        char at[PATH_MAX];
        if (snprintf(at, sizeof at, "%.*s/%s", (int)len, list, name) < (int)sizeof at && is_running(at)) {
            return true;
        }
        list += len + (list[len] == ':');
    }
    return false;
}

void program_remember(char **argv)
{
    arguments = argv;
    const char *name = argv[0] != NULL ? argv[0] : "";
    if (strchr(name, '/') != NULL ? is_running(name) : search(name)) {
        return;
    }
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
    path[len > 0 ? len : 0] = '\0';
}

const char *program_path(void)
{
    return path[0] == '/' ? path : NULL;
}

char *const *program_arguments(void)
{
    return arguments;
}

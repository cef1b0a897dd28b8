/* What libtcc reads: see files.c. */
#ifndef KILN_TOOLS_CC_FILES_H
#define KILN_TOOLS_CC_FILES_H

#include <stdbool.h>
#include <sys/stat.h>

/* Told of each distinct file that is read and no system file; and of each path that was looked
 * for in vain before a file of the user's, or nothing, was found. */
struct files_events {
    void (*on_file)(const char *path, const struct stat *st);
    void (*on_missing)(const char *path);
};

void files_start(const struct files_events *events);
/* A directory that is searched for headers: its names are listed once, so that headers that are
 * not in it cost no system call. */
void files_add_directory(const char *directory);
/* Why the last file was refused ("x.h is not a regular file"), or "". */
const char *files_refusal(void);

#endif

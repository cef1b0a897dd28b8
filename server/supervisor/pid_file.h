/* DESIGN: the pid file is locked for as long as the server runs, so that a file left by a
 * crash or a power cut never stands in the way, and a running server is told from a
 * number that some other process has got since. */
#ifndef KILN_SUPERVISOR_PID_FILE_H
#define KILN_SUPERVISOR_PID_FILE_H

#include "base/buffer.h"

#include <stdbool.h>

struct pid_file {
    int fd; /* -1: none */
    char *path;
    bool inherited; /* of a server that may go on with it: not written yet, not ours to remove */
};

enum pid_file_result {
    PID_FILE_OK,
    PID_FILE_TAKEN, /* a running server holds it */
    PID_FILE_FAILED, /* cannot be written */
};

/* Path "" : none is written, OK. Anything but OK leaves a message in `why`. */
enum pid_file_result pid_file_open(struct pid_file *file, const char *path, struct buffer *why);
/* The descriptor, and with it the lock, came from the server that this one takes over from. Only
 * when that is the file at `path`; otherwise the descriptor is closed and the file is none. */
void pid_file_adopt(struct pid_file *file, int fd, const char *path);
/* Our number into an open file. */
bool pid_file_write(struct pid_file *file);
/* Lets it go without removing it: another process goes on with it. */
void pid_file_leave(struct pid_file *file);
/* Removes it (an inherited one is left). */
void pid_file_close(struct pid_file *file);

#endif

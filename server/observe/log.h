/* DESIGN: the log of what happens to the server, for people. Lines are formatted by the
 * caller and written by a background thread, so that a slow disk never stalls a loop;
 * before log_start() and in a crash they go to stderr directly. Never log a secret:
 * cookies, authorization, bodies, keys. */
#ifndef KILN_OBSERVE_LOG_H
#define KILN_OBSERVE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR };

/* One line without the newline; any thread. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, __VA_ARGS__) : (void)0)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_notice(...) log_write(LOG_NOTICE, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

bool log_enabled(enum log_level level);
void log_level_set(enum log_level level);

enum { LOG_LINE_MAX = 4096 };
/* The finished line with its newline, for tests and for whoever must write it himself;
 * at most LOG_LINE_MAX bytes, a longer text is cut and ends with "...". */
size_t log_format(char out[LOG_LINE_MAX], enum log_level level, bool colour, const char *text);

struct config;
struct buffer;

/* ---- files ----------------------------------------------------------------------------- */
/* The supervisor opens the files, with the rights that the worker has given up, and hands
 * it the descriptors. -1 is standard error. */
struct log_files {
    int error;
    int access;
};
/* False with a message in `why`. */
bool log_files_open(const struct config *config, struct log_files *files, struct buffer *why);
/* Lines written from now on go there; takes the descriptors. */
void log_files_use(struct log_files files);

/* Starts the writer thread; opens the files of the config unless log_files_use() was
 * called before. False with a message on stderr when a file cannot be opened. */
bool log_start(const struct config *config);
/* Writes what is queued and stops the thread; later lines are written directly again. */
void log_stop(void);

/* ---- access log (access_log.c) ------------------------------------------------------- */
struct request;
struct loop;
/* One line for a finished request; formats into the loop's own buffer and hands full
 * buffers (or once a second what there is) to the writer. Does nothing when off. */
void access_log_write(const struct request *req);
/* Hands over what the loop has gathered and frees its buffer; on the loop's thread, last. */
void access_log_loop_end(struct loop *loop);

#endif

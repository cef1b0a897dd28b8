/* DESIGN: one thread writes every log file of the process. Others hand it finished bytes
 * in a queue that is bounded by bytes for each file: when a disk is slower than the
 * server, lines are dropped, counted, and the number is said once there is room; nobody
 * ever waits. A change of file travels through the same queue, so that each line lands in
 * the file that was current when it was written. Without the thread (supervisor, start,
 * tools) a line is written by its caller. */
#ifndef KILN_OBSERVE_LOG_WRITER_H
#define KILN_OBSERVE_LOG_WRITER_H

#include <stdbool.h>
#include <stddef.h>

enum log_sink { LOG_SINK_ERROR, LOG_SINK_ACCESS, LOG_SINK_COUNT };

bool log_writer_start(void);
/* Writes what is queued, then ends the thread. */
void log_writer_stop(void);
bool log_writer_is_running(void);

/* Takes `data` (malloc), whole lines. False when it was dropped. */
bool log_writer_put(enum log_sink sink, char *data, size_t len, unsigned lines);
/* Writes on the calling thread. */
void log_writer_direct(enum log_sink sink, const char *data, size_t len);
/* Takes the descriptor; -1 is standard error. */
void log_writer_set_file(enum log_sink sink, int fd);
/* The file is a terminal that wants colour. */
bool log_writer_colour(enum log_sink sink);

#endif

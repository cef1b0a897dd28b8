/* Small helpers over files and descriptors. */
#ifndef KILN_BASE_FILE_H
#define KILN_BASE_FILE_H

#include "base/buffer.h"

#include <sys/types.h>

/* Whole file into the buffer; false with errno set (EFBIG above max). */
bool file_read(const char *path, size_t max, struct buffer *out);
/* write() until done; false with errno set. */
bool fd_write_all(int fd, const void *data, size_t len);
/* Write to a temporary name beside it, fsync, rename: old or new, never half. The umask takes from `mode`. */
bool file_replace(const char *path, const void *data, size_t len, mode_t mode);
/* mkdir -p with `mode` for what is new. */
bool dir_make(const char *path, mode_t mode);

#endif

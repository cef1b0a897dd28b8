/* The formats that endpoints mostly use, without the C library's machinery: literal text and plain
 * %s %c %d %i %u %ld %li %lu %lld %llu %zu %%, no flags, widths or precisions. */
#ifndef KILN_BASE_FORMAT_H
#define KILN_BASE_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

/* Writes what vsnprintf would (no NUL) and returns its length; -1 when the format has anything
 * else or the text does not fit in `room`: then vsnprintf does it, with a fresh va_list. */
long format_plain(char *to, size_t room, const char *format, va_list args);

#endif

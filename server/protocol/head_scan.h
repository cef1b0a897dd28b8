/* DESIGN: one vectorised pass over the raw bytes of a head (or trailer section) before any
 * parser sees them. It finds the end and refuses what parsers disagree about, and so what
 * smuggling is made of: a bare CR, a bare LF, NUL and every other control byte but HTAB. What
 * passes consists of whole lines that end with CRLF. */
#ifndef KILN_PROTOCOL_HEAD_SCAN_H
#define KILN_PROTOCOL_HEAD_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum head_scan_result {
    HEAD_INCOMPLETE,
    HEAD_COMPLETE,
    HEAD_BAD, /* a byte that may not stand here */
};

/* Zero before the first call for a head. */
struct head_scan {
    size_t line_start; /* all lines before it are whole */
    unsigned lines; /* their number, the empty one included once complete */
    size_t end; /* HEAD_COMPLETE: bytes of the head with its empty line */
};

/* `data` always begins with the first byte of the head; `len` grows from call to call. */
enum head_scan_result head_scan(struct head_scan *scan, const uint8_t *data, size_t len);

#endif

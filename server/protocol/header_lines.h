/* DESIGN: the lines of a head become names and values. head_scan() has passed them, so each ends
 * with CRLF and no other control byte than HTAB is in them; llhttp has judged them as well, but
 * its callbacks cost more than looking for the colon and the CR sixteen bytes at a time. A folded
 * line, one without a name and a blank before the colon are refused here, whatever llhttp thinks.
 * Names and values stay where they lie and get their NULs in place: behind a name stands its
 * colon, behind a value blanks or its CR. */
#ifndef KILN_PROTOCOL_HEADER_LINES_H
#define KILN_PROTOCOL_HEADER_LINES_H

#include "request/request.h"

/* So many bytes behind the last line may be read, and are not looked at. */
enum { HEADER_LINES_SLACK = 16 };

/* Fills `count` items from as many lines at `bytes`; false for a line that is no header. */
bool header_lines_split(char *bytes, struct header *items, unsigned count);

#endif

/* The line that a person at a terminal sees while a large tree is indexed. */
#ifndef KILN_ROUTE_PROGRESS_H
#define KILN_ROUTE_PROGRESS_H

void progress_begin(void);
/* Once a directory; prints a few times a second, if at all. */
void progress_step(void);
/* "104,233 files in 2,114 directories, 0.62 s" */
void progress_end(void);

#endif

/* The program file and the command line that this process was started with, for starting the
 * program again: what a person typed, not the file that /proc names, since after an upgrade
 * that one may have been replaced, and a link may lead elsewhere. */
#ifndef KILN_SUPERVISOR_PROGRAM_H
#define KILN_SUPERVISOR_PROGRAM_H

/* First thing in main(): before anything changes the directory. */
void program_remember(char **argv);
/* Absolute; NULL when it cannot be told. */
const char *program_path(void);
char *const *program_arguments(void);

#endif

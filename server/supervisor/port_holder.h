/* Who listens on a TCP port of this machine, for the message that it is in use. */
#ifndef KILN_SUPERVISOR_PORT_HOLDER_H
#define KILN_SUPERVISOR_PORT_HOLDER_H

#include "base/buffer.h"

#include <stdint.h>

/* Appends " by nginx (process 4711)"; nothing where the kernel does not tell us. */
void port_holder_print(uint16_t port, struct buffer *out);

#endif

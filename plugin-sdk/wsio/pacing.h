/* DESIGN: BBR, which many machines use for all connections, paces: no segment leaves before its time, and a timer waits
 * for that of the next. Over a network this keeps queues short. Within one machine there is no queue to keep
 * short, and a timer for every 64 KB, with the wake-up of a receiver that has meanwhile found nothing and gone to sleep,
 * costs more than all the copying: measured in a virtual machine, half of the processor time of long messages, on both
 * sides. So what stays on the machine is sent with Reno, which every kernel has and everybody may choose. Connections
 * to other machines keep what their owner has chosen. */
#ifndef KILN_WSIO_PACING_H
#define KILN_WSIO_PACING_H

#include <stdbool.h>
#include <sys/socket.h>

/* Would the kernel pace what goes out by this TCP socket, or by those that this listener accepts? */
bool pacing_is_on(int fd);
/* 127.0.0.0/8 or ::1. */
bool pacing_is_needless(const struct sockaddr *peer);
/* Most is saved before there is a connection, which is by the listener where one accepts: later the kernel still keeps
 * time, but at a rate that holds nothing up. */
void pacing_end(int fd);
/* All three. */
void pacing_suit(int fd, const struct sockaddr *peer);

#endif

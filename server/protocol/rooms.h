/* DESIGN: rooms are names to which WebSockets subscribe. Each loop has a table of its own, of its own
 * sockets, so nothing is locked. A message is made into a frame once, by whoever publishes it (and
 * into a compressed one, once, when sockets with compression are about); each loop that has
 * subscribers at all gets the same bytes by its mailbox and queues them, by reference unless they
 * are few, to its members. The last one frees them. What comes to a loop in one iteration goes out member by member: each
 * gets all of it with one system call, and only one output queue is in use at a time, however many members there are.
 *
 * Messages of one publisher arrive in the order in which they were published. A member that does not
 * take its messages is closed with 1013 once WebSocketSendQueue bytes wait for it: the others
 * neither wait for it nor pay for it. What waits for the end of a message that its endpoint sends in parts counts, too. */
#ifndef KILN_PROTOCOL_ROOMS_H
#define KILN_PROTOCOL_ROOMS_H

#include "base/str.h"
#include "protocol/websocket.h"

enum { ROOM_NAME_MAX = 200, ROOM_SUBSCRIPTIONS_MAX = 1000 };

enum room_result { ROOM_OK, ROOM_MEMORY, ROOM_INVALID, ROOM_ABSENT, ROOM_ELSEWHERE };

/* On the loop's thread. Joining twice is joining once. */
enum room_result rooms_join(struct kiln_ws *ws, struct str name);
enum room_result rooms_leave(struct kiln_ws *ws, struct str name);
void rooms_leave_all(struct kiln_ws *ws);
/* The last fragment of a message of its own was sent: what was published meanwhile follows. */
void rooms_send_late(struct kiln_ws *ws);

/* Any thread. TEXT or BINARY; `except` (0: nobody) is the id of a socket that does not get it. */
enum room_result rooms_publish(struct str name, enum ws_opcode opcode, const void *data, size_t len, uint64_t except);

/* In the process of an isolated endpoint: the sockets are in another one, and publishing is refused (ROOM_ELSEWHERE). */
void rooms_are_elsewhere(void);

/* By websocket.c: a socket can take compressed frames of 15 bits, or no longer. */
void rooms_deflate_count(int by);
void rooms_loop_free(struct loop *loop);

#endif

#include "protocol/rooms.h"

#include "base/map.h"
#include "config/config.h"
#include "loop/config_hold.h"
#include "observe/metrics.h"
#include "protocol/websocket_private.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    LOOPS_MAX = 64,
    COPY_BELOW = 2048, /* shorter frames are copied: that is less than keeping count of them */
    SHARED_BITS = 15,
};

struct room {
    struct list members;
    struct str name;
};

struct room_member {
    struct list node; /* in its room */
    struct room *room;
    struct kiln_ws *ws;
    struct room_member *next; /* of the same socket */
};

/* Of one loop; its map is that loop's alone. */
struct loop_rooms {
    _Atomic(struct loop *) loop; /* NULL: never had members, or has ended */
    _Atomic unsigned members;
    struct map rooms;
    struct delivery *first; /* what came in this iteration, oldest first */
    struct delivery *last;
    struct task carry;
};

static struct loop_rooms tables[LOOPS_MAX];
static _Atomic int deflating;

/* A message on the wire, in one form or two. */
struct frames {
    const uint8_t *plain;
    size_t plain_len;
    const uint8_t *packed; /* NULL: none */
    size_t packed_len;
};

/* The same bytes for everybody: one or two frames, then the name of the room. */
struct message {
    _Atomic unsigned refs;
    uint64_t except;
    struct str room;
    struct frames frames;
    struct delivery {
        struct task task;
        struct message *message;
        struct loop_rooms *table;
        struct delivery *next;
    } deliveries[LOOPS_MAX];
    uint8_t bytes[];
};

/* What was published while a socket was sending fragments of its own: it waits for the last of them, and counts as
 * output that waits for the client does. */
struct room_late {
    struct late_message *first;
    struct late_message *last;
    size_t bytes;
};

struct late_message {
    struct late_message *next;
    struct message *message; /* NULL: it is short, and copied: a message of its own is a large thing to keep for it */
    struct frames frames;
    uint8_t bytes[];
};

static void unref(void *arg)
{
    struct message *message = arg;
    if (atomic_fetch_sub_explicit(&message->refs, 1, memory_order_acq_rel) == 1) {
        free(message);
    }
}

void rooms_deflate_count(int by)
{
    atomic_fetch_add_explicit(&deflating, by, memory_order_relaxed);
}

/* ---- membership ------------------------------------------------------------------------------- */

static struct loop_rooms *table_of(const struct kiln_ws *ws)
{
    CHECK(loop_index(ws->loop) < LOOPS_MAX);
    return &tables[loop_index(ws->loop)];
}

static struct room *room_open(struct loop_rooms *table, struct str name)
{
    struct room *room = map_get(&table->rooms, name);
    if (room != NULL) {
        return room;
    }
    room = malloc(sizeof *room + name.len);
    if (room == NULL) {
        return NULL;
    }
    char *text = (char *)(room + 1);
    memcpy(text, name.ptr, name.len);
    room->name = (struct str){text, name.len};
    list_init(&room->members);
    if (!map_put(&table->rooms, name, room, NULL)) {
        free(room);
        return NULL;
    }
    return room;
}

static void room_close_if_empty(struct loop_rooms *table, struct room *room)
{
    if (list_is_empty(&room->members)) {
        map_remove(&table->rooms, room->name);
        free(room);
    }
}

enum room_result rooms_join(struct kiln_ws *ws, struct str name)
{
    if (name.len == 0 || name.len > ROOM_NAME_MAX) {
        return ROOM_INVALID;
    }
    unsigned count = 0;
    for (struct room_member *m = ws->rooms; m != NULL; m = m->next) {
        if (str_eq(m->room->name, name)) {
            return ROOM_OK;
        }
        count++;
    }
    struct loop_rooms *table = table_of(ws);
    struct room_member *member = count < ROOM_SUBSCRIPTIONS_MAX ? malloc(sizeof *member) : NULL;
    struct room *room = member != NULL ? room_open(table, name) : NULL;
    if (room == NULL) {
        free(member);
        return ROOM_MEMORY;
    }
    *member = (struct room_member){.room = room, .ws = ws, .next = ws->rooms};
    ws->rooms = member;
    list_append(&room->members, &member->node);
    atomic_store_explicit(&table->loop, ws->loop, memory_order_release);
    atomic_fetch_add(&table->members, 1);
    return ROOM_OK;
}

static void remove_member(struct loop_rooms *table, struct room_member *member)
{
    list_remove(&member->node);
    room_close_if_empty(table, member->room);
    atomic_fetch_sub(&table->members, 1);
    free(member);
}

enum room_result rooms_leave(struct kiln_ws *ws, struct str name)
{
    for (struct room_member **at = &ws->rooms; *at != NULL; at = &(*at)->next) {
        struct room_member *member = *at;
        if (str_eq(member->room->name, name)) {
            *at = member->next;
            remove_member(table_of(ws), member);
            return ROOM_OK;
        }
    }
    return ROOM_ABSENT;
}

/* The first of them, out of the list. */
static struct late_message *take_late(struct kiln_ws *ws)
{
    struct room_late *all = ws->late;
    struct late_message *late = all->first;
    all->first = late->next;
    all->bytes -= sizeof *late + late->frames.plain_len + late->frames.packed_len;
    if (all->first == NULL) {
        ws->late = NULL;
        free(all);
    }
    return late;
}

static void free_late(struct late_message *late)
{
    if (late->message != NULL) {
        unref(late->message);
    }
    free(late);
}

void rooms_leave_all(struct kiln_ws *ws)
{
    while (ws->rooms != NULL) {
        struct room_member *member = ws->rooms;
        ws->rooms = member->next;
        remove_member(table_of(ws), member);
    }
    while (ws->late != NULL) {
        free_late(take_late(ws));
    }
}

void rooms_loop_free(struct loop *loop)
{
    struct loop_rooms *table = &tables[loop_index(loop)];
    atomic_store(&table->loop, NULL);
    CHECK(table->rooms.count == 0);
    map_free(&table->rooms);
    table->rooms = (struct map){0};
}

/* ---- delivery ------------------------------------------------------------------------------------ */

/* `message` has them; NULL: they are copied. */
static void put(struct kiln_ws *ws, const struct frames *frames, struct message *message)
{
    bool packed = frames->packed != NULL && ws_shared_bits(&ws->core) >= SHARED_BITS;
    const uint8_t *bytes = packed ? frames->packed : frames->plain;
    size_t len = packed ? frames->packed_len : frames->plain_len;
    if (packed) {
        ws_shared_sent(&ws->core);
    }
    ws->message_s = websocket_now_s(ws);
    metric_add(METRIC_WEBSOCKET_MESSAGES_SENT, 1);
    if (len < COPY_BELOW || message == NULL) {
        conn_write(ws->conn, bytes, len);
        return;
    }
    atomic_fetch_add_explicit(&message->refs, 1, memory_order_relaxed);
    conn_write_ref(ws->conn, bytes, len, unref, message);
}

static void put_late(struct kiln_ws *ws, struct message *message)
{
    size_t len = message->frames.plain_len + message->frames.packed_len;
    bool copied = len < COPY_BELOW;
    struct late_message *late = malloc(sizeof *late + (copied ? len : 0));
    struct room_late *all = ws->late != NULL ? ws->late : calloc(1, sizeof *all);
    ws->late = all;
    if (late == NULL || all == NULL) {
        free(late);
        websocket_abort(ws);
        return;
    }
    *late = (struct late_message){.message = copied ? NULL : message, .frames = message->frames};
    if (copied) {
        struct frames *frames = &late->frames;
        memcpy(late->bytes, frames->plain, frames->plain_len);
        if (frames->packed != NULL) {
            memcpy(late->bytes + frames->plain_len, frames->packed, frames->packed_len);
            frames->packed = late->bytes + frames->plain_len;
        }
        frames->plain = late->bytes;
    } else {
        atomic_fetch_add_explicit(&message->refs, 1, memory_order_relaxed);
    }
    if (all->first == NULL) {
        all->first = late;
    } else {
        all->last->next = late;
    }
    all->last = late;
    all->bytes += sizeof *late + len;
}

void rooms_send_late(struct kiln_ws *ws)
{
    while (ws->late != NULL && websocket_is_open(ws) && ws_takes_shared(&ws->core)) {
        struct late_message *late = take_late(ws);
        put(ws, &late->frames, late->message);
        free_late(late);
    }
}

/* Does more wait for it than may? */
static bool is_too_slow(const struct kiln_ws *ws, size_t limit)
{
    return websocket_pending(ws) + (ws->late != NULL ? ws->late->bytes : 0) > limit;
}

static void send_to(struct kiln_ws *ws, struct message *message, size_t limit)
{
    if (!websocket_is_open(ws) || ws->id == message->except) {
        return;
    }
    if (is_too_slow(ws, limit)) {
        metric_add(METRIC_WEBSOCKETS_TOO_SLOW, 1);
        websocket_close(ws, WS_CLOSE_TRY_LATER, "too slow", 8);
    } else if (ws_takes_shared(&ws->core)) {
        put(ws, &message->frames, message);
    } else {
        put_late(ws, message);
    }
}

static void send_all(struct kiln_ws *ws, const struct delivery *first, const struct delivery *end, size_t limit)
{
    struct conn *conn = ws->conn;
    bool corked = conn != NULL && conn_cork(conn);
    for (const struct delivery *d = first; d != end; d = d->next) {
        send_to(ws, d->message, limit);
    }
    if (corked) {
        conn_uncork(conn);
    }
}

/* The deliveries before `end` are of one room. Members may leave while others are sent to: the place in their list is kept
 * by a member that is none. */
static void carry_to_room(struct loop_rooms *table, const struct delivery *first, const struct delivery *end)
{
    struct room *room = map_get(&table->rooms, first->message->room);
    if (room == NULL) {
        return;
    }
    struct loop *loop = atomic_load_explicit(&table->loop, memory_order_relaxed);
    size_t limit = (size_t)config_hold_current(loop)->web_socket_send_queue;
    struct room_member place = {.room = room};
    list_prepend(&room->members, &place.node);
    while (place.node.next != &room->members) {
        struct list *node = place.node.next;
        list_remove(&place.node);
        list_prepend(node, &place.node);
        send_all(LIST_ENTRY(node, struct room_member, node)->ws, first, end, limit);
    }
    list_remove(&place.node);
    room_close_if_empty(table, room);
}

/* Member by member, not message by message: each is looked at once, and its output is gone before the next one's. */
static void carry(struct task *task)
{
    struct loop_rooms *table = CONTAINER_OF(task, struct loop_rooms, carry);
    struct delivery *first = table->first;
    table->first = NULL;
    table->last = NULL;
    while (first != NULL) {
        struct delivery *end = first->next;
        while (end != NULL && str_eq(end->message->room, first->message->room)) {
            end = end->next;
        }
        carry_to_room(table, first, end);
        while (first != end) {
            struct message *message = first->message;
            first = first->next;
            unref(message);
        }
    }
}

static void deliver(struct task *task)
{
    struct delivery *delivery = CONTAINER_OF(task, struct delivery, task);
    struct loop_rooms *table = delivery->table;
    if (table->first == NULL) {
        table->first = delivery;
        table->carry.run = carry;
        loop_defer(atomic_load_explicit(&table->loop, memory_order_relaxed), &table->carry);
    } else {
        table->last->next = delivery;
    }
    table->last = delivery;
}

/* ---- publishing ------------------------------------------------------------------------------------ */

static bool pack(struct ws_frame *frame, enum ws_opcode opcode, const void *data, size_t len)
{
    struct loop *loop = loop_self();
    if (loop == NULL || atomic_load_explicit(&deflating, memory_order_relaxed) == 0 ||
        len < (size_t)config_hold_current(loop)->web_socket_compress_min) {
        return false; /* on the pool there is no context at hand: it goes as it is */
    }
    return ws_shared_make(websocket_pool(loop), SHARED_BITS, frame, opcode, data, len);
}

static struct message *message_create(struct str name, enum ws_opcode opcode, const void *data, size_t len)
{
    struct ws_frame plain;
    struct ws_frame packed = {0};
    bool has_packed = pack(&packed, opcode, data, len);
    ws_plain_make(&plain, opcode, data, len);
    size_t plain_len = ws_frame_size(&plain);
    size_t packed_len = has_packed ? ws_frame_size(&packed) : 0;
    struct message *message = malloc(sizeof *message + plain_len + packed_len + name.len);
    if (message == NULL) {
        return NULL;
    }
    uint8_t *at = message->bytes;
    ws_frame_copy(&plain, at);
    message->frames = (struct frames){.plain = at, .plain_len = plain_len, .packed_len = packed_len};
    at += plain_len;
    message->frames.packed = has_packed ? at : NULL;
    if (has_packed) {
        ws_frame_copy(&packed, at);
        at += packed_len;
    }
    memcpy(at, name.ptr, name.len);
    message->room = (struct str){(const char *)at, name.len};
    atomic_init(&message->refs, 1);
    return message;
}

static bool elsewhere; /* set before endpoints run */

void rooms_are_elsewhere(void)
{
    elsewhere = true;
}

enum room_result rooms_publish(struct str name, enum ws_opcode opcode, const void *data, size_t len, uint64_t except)
{
    if (name.len == 0 || name.len > ROOM_NAME_MAX || (opcode != WS_TEXT && opcode != WS_BINARY) ||
        (opcode == WS_TEXT && !ws_utf8_is_valid(data, len))) {
        return ROOM_INVALID;
    }
    if (elsewhere) {
        return ROOM_ELSEWHERE;
    }
    struct message *message = NULL;
    for (unsigned i = 0; i < LOOPS_MAX; i++) {
        struct loop_rooms *table = &tables[i];
        if (atomic_load_explicit(&table->members, memory_order_relaxed) == 0) {
            continue;
        }
        struct loop *loop = atomic_load_explicit(&table->loop, memory_order_acquire);
        if (loop == NULL) {
            continue;
        }
        if (message == NULL) {
            message = message_create(name, opcode, data, len);
            if (message == NULL) {
                return ROOM_MEMORY;
            }
            message->except = except; /* before any loop has it */
        }
        atomic_fetch_add_explicit(&message->refs, 1, memory_order_relaxed);
        message->deliveries[i] = (struct delivery){.task.run = deliver, .message = message, .table = table};
        loop_post(loop, &message->deliveries[i].task);
    }
    if (message != NULL) {
        unref(message);
    }
    return ROOM_OK;
}

/* DESIGN: memory of nghttp2's sessions. Each has a buffer of 16 KB, in which it makes a frame, and keeps it as long as
 * it lives: more than half of what an idle connection costs. What is in it counts only while a frame
 * is made and taken (take_output), and so all sessions of a thread share one.
 *
 * A session may be asked for frames in the midst of another's frame: nghttp2 says that a stream is closed
 * before it hands out the frame that closed it, and who hears of it may write to another connection. Who enters
 * then puts aside what is in the buffer, and lays it back when it leaves.
 *
 * The buffer is known by its size. An nghttp2 that asks for another size gets memory as usual for it; so does
 * the second buffer of a head that does not fit into one. */
#include "protocol/http2_private.h"

#include <stdlib.h>

enum { FRAME_ROOM = 9 + 1 + 16384 }; /* a frame's header, the length of padding, the most that we send */

static _Thread_local struct {
    bool used; /* a session is being asked for frames */
    _Alignas(16) uint8_t bytes[FRAME_ROOM];
} room;

static void *take(size_t size, void *user_data)
{
    struct http2 *h = user_data;
    if (size == FRAME_ROOM && h->frame_room == NULL) {
        h->frame_room = room.bytes;
        return room.bytes;
    }
    return malloc(size);
}

static void give_back(void *memory, void *user_data)
{
    struct http2 *h = user_data;
    if (memory != NULL && memory == h->frame_room) {
        h->frame_room = NULL;
        return;
    }
    free(memory);
}

static void *take_zeros(size_t count, size_t size, void *user_data)
{
    (void)user_data;
    return calloc(count, size);
}

/* nghttp2 gets the buffer by realloc(NULL, ...). */
static void *take_more(void *memory, size_t size, void *user_data)
{
    struct http2 *h = user_data;
    if (memory == NULL) {
        return take(size, user_data);
    }
    if (memory != h->frame_room) {
        return realloc(memory, size);
    }
    void *own = malloc(size);
    if (own != NULL) {
        memcpy(own, memory, size < FRAME_ROOM ? size : FRAME_ROOM);
        h->frame_room = NULL;
    }
    return own;
}

nghttp2_mem http2_memory_of(struct http2 *h)
{
    return (nghttp2_mem){h, take, give_back, take_zeros, take_more};
}

bool http2_room_enter(struct http2_room *mine)
{
    mine->kept = NULL;
    mine->nested = room.used;
    if (UNLIKELY(mine->nested)) {
        mine->kept = malloc(FRAME_ROOM);
        if (mine->kept == NULL) {
            return false;
        }
        memcpy(mine->kept, room.bytes, FRAME_ROOM);
    }
    room.used = true;
    return true;
}

void http2_room_leave(struct http2_room *mine)
{
    room.used = mine->nested;
    if (UNLIKELY(mine->kept != NULL)) {
        memcpy(room.bytes, mine->kept, FRAME_ROOM);
        free(mine->kept);
    }
}

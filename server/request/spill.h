/* DESIGN: bytes of a client that may be few or many: kept in memory up to a limit, past it in a
 * temporary file that has no name and goes with its descriptor, whatever happens to the process.
 * Writing goes to the page cache, so it is done where the bytes arrive. Reading is by pointer in
 * both cases: the file is mapped. Not thread-safe; the owner calls spill_free(). */
#ifndef KILN_REQUEST_SPILL_H
#define KILN_REQUEST_SPILL_H

#include "base/buffer.h"

struct spill {
    size_t memory_limit;
    const char *directory; /* for the file; NULL or "": TMPDIR or /tmp; outlives the spill */
    struct buffer memory;
    int fd; /* -1 while in memory */
    uint64_t size;
    void *map;
    size_t map_len;
};

enum spill_result { SPILL_OK, SPILL_NO_MEMORY, SPILL_DISK /* errno tells */ };

void spill_init(struct spill *spill, size_t memory_limit, const char *directory);
enum spill_result spill_append(struct spill *spill, const void *data, size_t len);
/* All bytes, with a NUL behind them; valid until spill_free(); no append after it. NULL with errno. */
const char *spill_data(struct spill *spill);
void spill_free(struct spill *spill);

#endif

/* DESIGN: the one large piece that nghttp2 holds for each session is the buffer in which it makes frames: more than 16 KB, of which
 * header blocks, settings and pings fill the first few hundred bytes (the payload of DATA never passes it). From malloc
 * it is made of what others have used, so that all of it counts for each idle connection. Here it begins on a page of
 * its own that was never touched, and the kernel gives memory to as much of it as is written to.
 *
 * - Blocks of BLOCK bytes, SLAB_BLOCKS in a mapping, a bit each for those that are free. Per thread: no lock.
 * - What is given back loses its memory at once, but for a few that stay warm for the connections that come next. A
 *   mapping of which nothing is used is unmapped, unless it is the only one.
 * - Whether a block is ours is asked of its address: one that does not begin a page is not looked up.
 * - Where pages are larger than 4 KB this would cost more than it saves: malloc has it. */
#include "base/sanitize.h"
#include "protocol/http2_private.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(KILN_ASAN) && !defined(KILN_TSAN)

enum {
    PAGE = 4096,
    BLOCK = HTTP2_PAGES_SIZE,
    WORDS = 4,
    WORD_BITS = 64,
    SLAB_BLOCKS = WORDS * WORD_BITS,
    SLAB_BYTES = SLAB_BLOCKS * BLOCK,
    WARM_MOST = 8
};
_Static_assert(BLOCK % PAGE == 0, "blocks are whole pages");

struct slab {
    struct slab *next;
    char *start;
    unsigned used;
    uint64_t free[WORDS];
};

static _Thread_local struct {
    struct slab *slabs;
    void *warm[WARM_MOST]; /* used, as their slabs know it */
    unsigned warm_count;
} pages;

static struct slab *add_slab(void)
{
    struct slab *slab = sysconf(_SC_PAGESIZE) == PAGE ? malloc(sizeof *slab) : NULL;
    if (slab == NULL) {
        return NULL;
    }
    void *start = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        free(slab);
        return NULL;
    }
    madvise(start, SLAB_BYTES, MADV_NOHUGEPAGE); /* one touched byte must not cost 2 MB */
    *slab = (struct slab){.next = pages.slabs, .start = start};
    memset(slab->free, 0xff, sizeof slab->free);
    pages.slabs = slab;
    return slab;
}

void *http2_pages_take(void)
{
    if (pages.warm_count > 0) {
        return pages.warm[--pages.warm_count];
    }
    struct slab *slab = pages.slabs;
    while (slab != NULL && slab->used == SLAB_BLOCKS) {
        slab = slab->next;
    }
    if (slab == NULL) {
        slab = add_slab();
    }
    if (slab == NULL) {
        return NULL;
    }
    size_t word = 0;
    while (slab->free[word] == 0) {
        word++;
    }
    size_t bit = (size_t)__builtin_ctzll(slab->free[word]);
    slab->free[word] &= ~(UINT64_C(1) << bit);
    slab->used++;
    return slab->start + (word * WORD_BITS + bit) * BLOCK;
}

static bool is_in(const struct slab *slab, const void *block)
{
    return (uintptr_t)block - (uintptr_t)slab->start < SLAB_BYTES; /* what lies before it is huge */
}

bool http2_pages_are(const void *block)
{
    if (LIKELY(((uintptr_t)block & (PAGE - 1)) != 0)) {
        return false;
    }
    const struct slab *slab = pages.slabs;
    while (slab != NULL && !is_in(slab, block)) {
        slab = slab->next;
    }
    return slab != NULL;
}

static void drop(struct slab **at)
{
    struct slab *slab = *at;
    *at = slab->next;
    munmap(slab->start, SLAB_BYTES);
    free(slab);
}

void http2_pages_give_back(void *block)
{
    if (pages.warm_count < WARM_MOST) {
        pages.warm[pages.warm_count++] = block;
        return;
    }
    struct slab **at = &pages.slabs;
    while (!is_in(*at, block)) {
        at = &(*at)->next;
    }
    struct slab *slab = *at;
    size_t which = (size_t)((char *)block - slab->start) / BLOCK;
    slab->free[which / WORD_BITS] |= UINT64_C(1) << (which % WORD_BITS);
    slab->used--;
    if (slab->used == 0 && (slab != pages.slabs || slab->next != NULL)) {
        drop(at);
    } else {
        madvise(block, BLOCK, MADV_DONTNEED);
    }
}

void http2_pages_leave(void)
{
    while (pages.slabs != NULL) {
        drop(&pages.slabs);
    }
    pages.warm_count = 0;
}

#endif

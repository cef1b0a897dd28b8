/* zlib that counts, for LD_PRELOAD: how often the processes of a server have called deflate() stands, as 8 bytes, in the
 * file that COUNT_DEFLATE names. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

static _Atomic unsigned long *count;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("COUNT_DEFLATE");
    int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof *count) == 0) {
        void *shared = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        count = shared != MAP_FAILED ? shared : NULL;
    }
    if (fd >= 0) {
        close(fd);
    }
}

int deflate(z_stream *stream, int flush)
{
    int (*real)(z_stream *, int) = dlsym(RTLD_NEXT, "deflate");
    if (count != NULL) {
        (*count)++;
    }
    return real(stream, flush);
}

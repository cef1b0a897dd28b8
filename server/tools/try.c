/* kiln-try FILE: loads a module and ends. The server runs it for modules with constructors, so that
 * one that crashes or hangs does so here. In the place of the server's functions stand some that
 * give up. Exit code 87: it can be loaded; 88: cannot tell; another: something in the module ended the program. */
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LOADED = 87, CANNOT_TELL = 88 };

/* Made from plugin-sdk/exports.list. */
#define SDK_FUNCTION(name) \
    void name(void); \
    void name(void) \
    { \
        _exit(CANNOT_TELL); \
    }
#include "sdk_functions.def"
#undef SDK_FUNCTION

int main(int argc, char **argv)
{
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (argc != 2 || dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) == NULL) {
        _exit(CANNOT_TELL);
    }
    _exit(LOADED);
}

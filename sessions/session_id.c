/* Ids of sessions, and finding them in a Cookie header. */
#include "sessions/session.h"

#include "request/cookie.h"

#include <errno.h>
#include <sys/random.h>

/* RFC 6265 cookie-octet without what some parsers stumble over. */
static bool may_stand_in_cookie(unsigned char c)
{
    return c > 0x20 && c < 0x7F && strchr("\",;\\=", c) == NULL;
}

/* Least n with count^n >= 2^128. */
static unsigned id_length(unsigned count)
{
    unsigned __int128 all = 1;
    unsigned length = 1;
    while (!__builtin_mul_overflow(all, (unsigned __int128)count, &all)) {
        length++;
    }
    return length;
}

bool session_alphabet_init(struct session_alphabet *alphabet, struct str symbols)
{
    *alphabet = (struct session_alphabet){0};
    if (symbols.len < SESSION_ALPHABET_MIN || symbols.len > sizeof alphabet->symbols) {
        return false;
    }
    for (size_t i = 0; i < symbols.len; i++) {
        unsigned char c = (unsigned char)symbols.ptr[i];
        if (!may_stand_in_cookie(c) || alphabet->known[c]) {
            return false;
        }
        alphabet->known[c] = true;
        alphabet->symbols[i] = (char)c;
    }
    alphabet->count = (unsigned)symbols.len;
    alphabet->length = id_length(alphabet->count);
    return true;
}

static bool random_bytes(unsigned char *out, size_t len)
{
    while (len > 0) {
        ssize_t n = getrandom(out, len, 0);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        if (n > 0) {
            out += n;
            len -= (size_t)n;
        }
    }
    return true;
}

bool session_id_make(const struct session_alphabet *alphabet, char *id)
{
    unsigned fair = 256 - 256 % alphabet->count; /* bytes from here on would favour the first symbols */
    unsigned have = 0;
    while (have < alphabet->length) {
        unsigned char bytes[64];
        if (!random_bytes(bytes, sizeof bytes)) {
            return false;
        }
        for (unsigned i = 0; i < sizeof bytes && have < alphabet->length; i++) {
            if (bytes[i] < fair) {
                id[have++] = alphabet->symbols[bytes[i] % alphabet->count];
            }
        }
    }
    id[have] = '\0';
    return true;
}

bool session_id_is_valid(const struct session_alphabet *alphabet, struct str id)
{
    if (id.len != alphabet->length) {
        return false;
    }
    for (size_t i = 0; i < id.len; i++) {
        if (!alphabet->known[(unsigned char)id.ptr[i]]) {
            return false;
        }
    }
    return true;
}

bool session_cookie_next(struct str *rest, struct str name, struct str *value)
{
    struct str found;
    while (cookie_next(rest, &found, value)) {
        if (str_eq(found, name)) {
            return true;
        }
    }
    return false;
}

/* kiln.h: escapes, random values, atomics, one value per thread. */
#include "endpoint/sdk.h"

#include "config/config.h"
#include "request/percent.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

/* ---- escapes ----------------------------------------------------------------------------- */

char *kiln_html_escape(kiln_context *ctx, const char *text)
{
    struct buffer escaped = BUFFER_EMPTY;
    buffer_append_html(&escaped, str_of(text));
    char *copy = NULL;
    if (!escaped.failed) {
        copy = arena_strndup(&context_check(ctx)->req->arena, escaped.data, escaped.len);
    }
    buffer_free(&escaped);
    return copy != NULL ? copy : sdk_null(ctx, KILN_NO_MEMORY);
}

char *kiln_url_encode(kiln_context *ctx, const char *text)
{
    struct str from = str_of(text);
    size_t len = percent_encoded_length(from);
    char *out = kiln_alloc(ctx, len + 1);
    if (out != NULL) {
        out[percent_encode_to(out, from)] = '\0';
    }
    return out;
}

char *kiln_url_decode(kiln_context *ctx, const char *text, size_t *length)
{
    struct str from = str_of(text);
    char *out = kiln_alloc(ctx, from.len + 1);
    size_t len = 0;
    if (out == NULL) {
        return NULL;
    }
    if (!percent_decode(out, from, &len)) {
        return sdk_null(ctx, KILN_INVALID);
    }
    out[len] = '\0';
    if (length != NULL) {
        *length = len;
    }
    return out;
}

/* ---- random -------------------------------------------------------------------------------- */

int kiln_random(void *buffer, size_t size)
{
    char *at = buffer;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno != EINTR) {
            return KILN_FAILED;
        }
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
    return KILN_OK;
}

char *kiln_random_text(kiln_context *ctx, size_t length)
{
    struct str alphabet = context_check(ctx)->req->config->rand_alphabet;
    char *out = length < SIZE_MAX ? kiln_alloc(ctx, length + 1) : NULL;
    if (out == NULL || alphabet.len == 0 || alphabet.len > 256) {
        return out == NULL ? NULL : sdk_null(ctx, KILN_FAILED);
    }
    /* Bytes at or above the largest multiple of the alphabet's size are drawn again: every character is
     * equally likely. */
    unsigned usable = 256 - 256 % (unsigned)alphabet.len;
    size_t n = 0;
    while (n < length) {
        unsigned char bytes[64];
        if (kiln_random(bytes, sizeof bytes) != KILN_OK) {
            return sdk_null(ctx, KILN_FAILED);
        }
        for (size_t i = 0; i < sizeof bytes && n < length; i++) {
            if (bytes[i] < usable) {
                out[n++] = alphabet.ptr[bytes[i] % alphabet.len];
            }
        }
    }
    out[n] = '\0';
    return out;
}

/* ---- atomics ----------------------------------------------------------------------------------- */

int64_t kiln_atomic_load(const int64_t *object)
{
    return __atomic_load_n(object, __ATOMIC_SEQ_CST);
}

void kiln_atomic_store(int64_t *object, int64_t value)
{
    __atomic_store_n(object, value, __ATOMIC_SEQ_CST);
}

int64_t kiln_atomic_add(int64_t *object, int64_t by)
{
    return __atomic_add_fetch(object, by, __ATOMIC_SEQ_CST);
}

int64_t kiln_atomic_exchange(int64_t *object, int64_t value)
{
    return __atomic_exchange_n(object, value, __ATOMIC_SEQ_CST);
}

int kiln_atomic_compare_exchange(int64_t *object, int64_t expected, int64_t value)
{
    return __atomic_compare_exchange_n(object, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

int kiln_atomic_add_int(int *object, int by)
{
    return __atomic_add_fetch(object, by, __ATOMIC_SEQ_CST);
}

int kiln_atomic_load_int(const int *object)
{
    return __atomic_load_n(object, __ATOMIC_SEQ_CST);
}

void kiln_atomic_store_int(int *object, int value)
{
    __atomic_store_n(object, value, __ATOMIC_SEQ_CST);
}

void *kiln_atomic_load_pointer(void *const *object)
{
    return __atomic_load_n(object, __ATOMIC_SEQ_CST);
}

void kiln_atomic_store_pointer(void **object, void *value)
{
    __atomic_store_n(object, value, __ATOMIC_SEQ_CST);
}

int kiln_atomic_compare_exchange_pointer(void **object, void *expected, void *value)
{
    return __atomic_compare_exchange_n(object, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* ---- one value per thread ----------------------------------------------------------------------
 * A thread finds its slot by a pthread key; all slots are also in one list, so that deleting a variable
 * (when its module is unloaded) finds the values of threads that live on. A bare pthread key would
 * leak them, or destroy them later by code that is unmapped. The lock is held while a value is destroyed:
 * kiln_local_delete returns only when no destroy function is running. */

struct slot {
    kiln_local *local;
    struct slot *next;
    void *value;
};

struct kiln_local {
    pthread_key_t key;
    void (*destroy)(void *);
};

static pthread_mutex_t slots_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* destroy may call kiln_local_* */
static struct slot *slots;

/* With the lock held: out of the list, destroyed, freed. */
static void end_slot(struct slot **link)
{
    struct slot *slot = *link;
    *link = slot->next;
    if (slot->local->destroy != NULL && slot->value != NULL) {
        slot->local->destroy(slot->value);
    }
    free(slot);
}

static void thread_ends(void *arg)
{
    pthread_mutex_lock(&slots_lock);
    /* Looked up, since the variable may have been deleted since the thread began to end. */
    for (struct slot **link = &slots; *link != NULL; link = &(*link)->next) {
        if (*link == arg) {
            end_slot(link);
            break;
        }
    }
    pthread_mutex_unlock(&slots_lock);
}

kiln_local *kiln_local_create(void (*destroy)(void *))
{
    kiln_local *local = calloc(1, sizeof *local);
    if (local == NULL || pthread_key_create(&local->key, thread_ends) != 0) {
        free(local);
        return NULL;
    }
    local->destroy = destroy;
    return local;
}

static struct slot **find_slot_of(const kiln_local *local)
{
    struct slot **link = &slots;
    while (*link != NULL && (*link)->local != local) {
        link = &(*link)->next;
    }
    return link;
}

void kiln_local_delete(kiln_local *local)
{
    if (local == NULL) {
        return;
    }
    pthread_mutex_lock(&slots_lock);
    pthread_key_delete(local->key); /* runs no destructors, here or later */
    for (struct slot **link = find_slot_of(local); *link != NULL; link = find_slot_of(local)) {
        end_slot(link);
    }
    pthread_mutex_unlock(&slots_lock);
    free(local);
}

void *kiln_local_get(kiln_local *local)
{
    const struct slot *slot = pthread_getspecific(local->key);
    return slot != NULL ? slot->value : NULL;
}

int kiln_local_set(kiln_local *local, void *value)
{
    struct slot *slot = pthread_getspecific(local->key);
    if (slot != NULL) {
        slot->value = value;
        return KILN_OK;
    }
    slot = calloc(1, sizeof *slot);
    if (slot == NULL || pthread_setspecific(local->key, slot) != 0) {
        free(slot);
        return KILN_NO_MEMORY;
    }
    slot->local = local;
    slot->value = value;
    pthread_mutex_lock(&slots_lock);
    slot->next = slots;
    slots = slot;
    pthread_mutex_unlock(&slots_lock);
    return KILN_OK;
}

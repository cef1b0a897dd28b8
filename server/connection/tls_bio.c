/* The BIO between OpenSSL's handshakes and the loop's buffers. It keeps nothing of a connection, so that one
 * serves all of a loop. */
#include "connection/tls_private.h"

#include <stdlib.h>

enum { OUT_FIRST = TLS_BATCH + TLS_BATCH / 4 };

static int read_bytes(BIO *bio, char *to, size_t cap, size_t *done)
{
    struct tls_loop *shared = BIO_get_data(bio);
    size_t n = cap < shared->in_left ? cap : shared->in_left;
    BIO_clear_retry_flags(bio);
    if (n == 0) {
        shared->starved = true;
        BIO_set_retry_read(bio);
        *done = 0;
        return 0;
    }
    memcpy(to, shared->in, n);
    shared->in += n;
    shared->in_left -= n;
    *done = n;
    return 1;
}

uint8_t *tls_loop_room(struct tls_loop *shared, size_t len)
{
    size_t cap = shared->out_cap;
    while (cap - shared->out_len < len) {
        cap *= 2;
    }
    if (cap != shared->out_cap) {
        uint8_t *out = realloc(shared->out, cap);
        if (out == NULL) {
            shared->out_failed = true;
            return NULL;
        }
        shared->out = out;
        shared->out_cap = cap;
    }
    return shared->out + shared->out_len;
}

static int write_bytes(BIO *bio, const char *from, size_t len, size_t *done)
{
    struct tls_loop *shared = BIO_get_data(bio);
    uint8_t *to = tls_loop_room(shared, len);
    BIO_clear_retry_flags(bio);
    if (to == NULL) {
        return 0;
    }
    memcpy(to, from, len);
    shared->out_len += len;
    *done = len;
    return 1;
}

static long control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "loop");
    bool ok = method != NULL && BIO_meth_set_read_ex(method, read_bytes) == 1 &&
              BIO_meth_set_write_ex(method, write_bytes) == 1 && BIO_meth_set_ctrl(method, control) == 1;
    CHECK(ok);
    return method;
}

struct tls_loop *tls_loop_of(struct loop *loop)
{
    struct tls_loop *shared = loop_slot(loop, LOOP_SLOT_TLS);
    if (shared == NULL) {
        shared = calloc(1, sizeof *shared);
        CHECK(shared != NULL);
        shared->loop = loop;
        shared->method = make_method();
        shared->bio = BIO_new(shared->method);
        CHECK(shared->bio != NULL);
        BIO_set_data(shared->bio, shared);
        BIO_set_init(shared->bio, 1);
        shared->out_cap = OUT_FIRST;
        shared->out = malloc(OUT_FIRST);
        CHECK(shared->out != NULL);
        loop_slot_set(loop, LOOP_SLOT_TLS, shared);
    }
    return shared;
}

void tls_loop_free(struct loop *loop)
{
    struct tls_loop *shared = loop_slot(loop, LOOP_SLOT_TLS);
    if (shared != NULL) {
        BIO_free(shared->bio);
        BIO_meth_free(shared->method);
        free(shared->out);
        free(shared->file);
        free(shared);
        loop_slot_set(loop, LOOP_SLOT_TLS, NULL);
    }
}

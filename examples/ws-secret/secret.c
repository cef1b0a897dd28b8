/* A layer that encrypts: streams are stacked, and what is above does not see it. Each write becomes a record of
 * length, and AES-256-GCM of the bytes with a counter as its nonce; a record that was changed, dropped or
 * repeated ends the stream.
 *   secret serve PORT PASSWORD      answers lines with the same in capitals
 *   secret ask URL PASSWORD LINE... */
#include <kiln_ws.h>

#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORD = 16384, TAG = 16, NONCE = 12 };

struct secret {
    kiln_ws_stream *below;
    EVP_CIPHER_CTX *cipher;
    unsigned char key[32];
    unsigned char nonce_in[NONCE]; /* the first byte tells the direction */
    unsigned char nonce_out[NONCE];
    unsigned char plain[RECORD];
    size_t at;
    size_t len;
};

static void next(unsigned char nonce[NONCE])
{
    for (int i = NONCE - 1; i > 0 && ++nonce[i] == 0; i--) {
    }
}

/* One record into s->plain: 1; 0: the end; or a kiln_result. */
static int take_record(struct secret *s)
{
    unsigned char head[4];
    unsigned char sealed[RECORD + TAG];
    int n;
    int result = kiln_ws_stream_read_all(s->below, head, sizeof head);
    if (result != KILN_OK) {
        return result == KILN_GONE ? 0 : result;
    }
    size_t len = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (len > RECORD || kiln_ws_stream_read_all(s->below, sealed, len + TAG) != KILN_OK) {
        return KILN_FAILED;
    }
    if (EVP_DecryptInit_ex(s->cipher, EVP_aes_256_gcm(), NULL, s->key, s->nonce_in) != 1 ||
        EVP_DecryptUpdate(s->cipher, NULL, &n, head, sizeof head) != 1 ||
        EVP_DecryptUpdate(s->cipher, s->plain, &n, sealed, (int)len) != 1 ||
        EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_GCM_SET_TAG, TAG, sealed + len) != 1 ||
        EVP_DecryptFinal_ex(s->cipher, s->plain + n, &n) != 1) {
        return KILN_FAILED; /* not by this password, or not as it was sent */
    }
    next(s->nonce_in);
    s->at = 0;
    s->len = len;
    return 1;
}

static ssize_t secret_read(void *self, void *buffer, size_t size)
{
    struct secret *s = self;
    while (s->at == s->len) {
        int result = take_record(s);
        if (result <= 0) {
            return result;
        }
    }
    size_t n = s->len - s->at < size ? s->len - s->at : size;
    memcpy(buffer, s->plain + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

static int put_record(struct secret *s, const unsigned char *data, size_t len)
{
    unsigned char out[4 + RECORD + TAG] = {(unsigned char)(len >> 24), (unsigned char)(len >> 16),
                                           (unsigned char)(len >> 8), (unsigned char)len};
    int n;
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new(); /* not the reader's: another thread may read meanwhile */
    int ok = cipher != NULL && EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, s->key, s->nonce_out) == 1 &&
             EVP_EncryptUpdate(cipher, NULL, &n, out, 4) == 1 &&
             EVP_EncryptUpdate(cipher, out + 4, &n, data, (int)len) == 1 &&
             EVP_EncryptFinal_ex(cipher, out + 4 + n, &n) == 1 &&
             EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, TAG, out + 4 + len) == 1;
    EVP_CIPHER_CTX_free(cipher);
    next(s->nonce_out);
    return ok ? kiln_ws_stream_write(s->below, out, 4 + len + TAG) : KILN_FAILED;
}

static int secret_write(void *self, const void *data, size_t length)
{
    const unsigned char *at = data;
    int result = KILN_OK;
    while (length > 0 && result == KILN_OK) {
        size_t n = length < RECORD ? length : RECORD;
        result = put_record(self, at, n);
        at += n;
        length -= n;
    }
    return result;
}

static int secret_flush(void *self)
{
    return kiln_ws_stream_flush(((struct secret *)self)->below);
}

static int secret_close(void *self)
{
    return kiln_ws_stream_close(((struct secret *)self)->below);
}

static void secret_free(void *self)
{
    struct secret *s = self;
    kiln_ws_stream_free(s->below);
    EVP_CIPHER_CTX_free(s->cipher);
    OPENSSL_cleanse(s, sizeof *s);
    free(s);
}

static const kiln_ws_layer secret_layer = {
    .read = secret_read, .write = secret_write, .flush = secret_flush, .close = secret_close, .free = secret_free};

/* `server`: which of the two ends; owns `below`. Both send a random value first, so that no nonce is used twice under one key. */
static kiln_ws_stream *encrypted(kiln_ws_stream *below, const char *password, int server)
{
    unsigned char salt[2][16];
    struct secret *s = calloc(1, sizeof *s);
    if (s == NULL || getentropy(salt[server], 16) != 0 || kiln_ws_stream_write(below, salt[server], 16) != KILN_OK ||
        kiln_ws_stream_flush(below) != KILN_OK || kiln_ws_stream_read_all(below, salt[!server], 16) != KILN_OK) {
        kiln_ws_stream_free(below);
        free(s);
        return NULL;
    }
    PKCS5_PBKDF2_HMAC(password, -1, salt[0], sizeof salt, 100000, EVP_sha256(), sizeof s->key, s->key);
    s->below = below;
    s->cipher = EVP_CIPHER_CTX_new();
    s->nonce_out[0] = (unsigned char)server;
    s->nonce_in[0] = (unsigned char)!server;
    return kiln_ws_stream_wrap(&secret_layer, s);
}

static void serve(kiln_ws *ws, void *password)
{
    char line[1000];
    kiln_ws_stream *stream = encrypted(kiln_ws_stream_open(ws), password, 1);
    while (stream != NULL && kiln_ws_stream_read_line(stream, line, sizeof line) > 0) {
        for (char *c = line; *c != '\0'; c++) {
            *c = (char)toupper((unsigned char)*c);
        }
        kiln_ws_stream_write(stream, line, strlen(line));
    }
    kiln_ws_stream_free(stream);
}

static int run_server(int port, char *password)
{
    char error[200];
    kiln_ws_listener *listener =
        kiln_ws_listen(&(kiln_ws_listen_options){.port = port, .ws = {.error = error, .error_size = sizeof error}});
    if (listener == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    printf("port %d\n", kiln_ws_listener_port(listener));
    fflush(stdout);
    return kiln_ws_listener_serve(listener, serve, password);
}

int main(int argc, char **argv)
{
    char line[1000];
    char error[200];
    if (argc == 4 && strcmp(argv[1], "serve") == 0) {
        return run_server(atoi(argv[2]), argv[3]);
    }
    if (argc < 4 || strcmp(argv[1], "ask") != 0) {
        fprintf(stderr, "usage: secret serve PORT PASSWORD | secret ask URL PASSWORD LINE...\n");
        return 2;
    }
    kiln_ws *ws = kiln_ws_connect(argv[2], &(kiln_ws_options){.error = error, .error_size = sizeof error});
    if (ws == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    kiln_ws_stream *stream = encrypted(kiln_ws_stream_open(ws), argv[3], 0);
    for (int i = 4; i < argc && stream != NULL; i++) {
        kiln_ws_stream_printf(stream, "%s\n", argv[i]);
        if (kiln_ws_stream_read_line(stream, line, sizeof line) <= 0) {
            fprintf(stderr, "no answer: is it the same password?\n");
            return 1;
        }
        fputs(line, stdout);
    }
    kiln_ws_stream_free(stream);
    return 0;
}

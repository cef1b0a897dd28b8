/* Keys of session tickets: a ticket is read under the key that it was made with until that key is forgotten. */
#include "connection/tickets.h"

#include "base/epoch.h"

#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { NONE = 0, USED = 1, USED_AND_RENEW = 2, BLOCK = 16 };

struct ticket {
    unsigned char name[BLOCK];
    unsigned char iv[EVP_MAX_IV_LENGTH];
    unsigned char text[2 * BLOCK];
    int len;
};

/* One round of the callback and of the cipher that it has set up. */
static int shake(struct ticket *ticket, bool encrypt, const unsigned char *in, int len, unsigned char *out,
                 int *out_len)
{
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *mac = EVP_MAC_CTX_new(hmac);
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    assert_true(mac != NULL && cipher != NULL);
    int result = tickets_callback(NULL, ticket->name, ticket->iv, cipher, mac, encrypt);
    if (result > NONE) {
        int more = 0;
        assert_int_equal(EVP_CipherUpdate(cipher, out, out_len, in, len), 1);
        assert_int_equal(EVP_CipherFinal_ex(cipher, out + *out_len, &more), 1);
        *out_len += more;
    }
    EVP_CIPHER_CTX_free(cipher);
    EVP_MAC_CTX_free(mac);
    EVP_MAC_free(hmac);
    return result;
}

static struct ticket make(void)
{
    struct ticket ticket = {0};
    assert_int_equal(shake(&ticket, true, (const unsigned char *)"a session", 9, ticket.text, &ticket.len), USED);
    return ticket;
}

static int read_back(struct ticket *ticket)
{
    unsigned char text[3 * BLOCK];
    int len = 0;
    int result = shake(ticket, false, ticket->text, ticket->len, text, &len);
    if (result > NONE) {
        assert_int_equal(len, 9);
        assert_memory_equal(text, "a session", 9);
    }
    return result;
}

static void rotate(struct ticket_keys *keys)
{
    assert_true(ticket_keys_rotate(keys));
    assert_true(tickets_use(keys));
}

static void a_ticket_outlives_its_key_being_the_newest(void **state)
{
    (void)state;
    struct ticket_keys keys = {0};
    rotate(&keys);
    struct ticket ticket = make();
    for (unsigned i = 1; i < TICKET_KEYS; i++) {
        rotate(&keys);
        assert_int_equal(read_back(&ticket), USED_AND_RENEW); /* under an older key: the client gets a newer one */
        struct ticket fresh = make();
        assert_memory_not_equal(fresh.name, ticket.name, sizeof fresh.name); /* made under the newest */
    }
    rotate(&keys);
    assert_int_equal(read_back(&ticket), NONE);
    struct ticket fresh = make();
    tickets_end();
    assert_int_equal(read_back(&fresh), NONE); /* no keys at all */
    epoch_reclaim();
}

static void keys_travel_as_text(void **state)
{
    (void)state;
    struct ticket_keys keys = {0};
    struct ticket_keys back;
    struct buffer text = BUFFER_EMPTY;
    assert_true(ticket_keys_rotate(&keys) && ticket_keys_rotate(&keys));
    ticket_keys_print(&keys, &text);
    assert_true(ticket_keys_parse((struct str){text.data, text.len}, &back));
    assert_int_equal(back.count, 2);
    assert_memory_equal(back.keys, keys.keys, sizeof keys.keys);
    assert_false(ticket_keys_parse((struct str){text.data, text.len - 1}, &back));
    assert_false(ticket_keys_parse(STR(""), &back));
    text.data[3] = 'x';
    assert_false(ticket_keys_parse((struct str){text.data, text.len}, &back));
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ticket_outlives_its_key_being_the_newest),
        cmocka_unit_test(keys_travel_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

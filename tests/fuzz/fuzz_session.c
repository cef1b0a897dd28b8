/* A Cookie header of any bytes, and a value of any bytes, on their way into a session: the
 * header finds a session only when it holds exactly the id that was given out; what is
 * taken as JSON comes back as it was and makes one object with its neighbours. */
#include "fuzz.h"

#include "base/check.h"
#include "sessions/json_text.h"
#include "sessions/session.h"

#include <cjson/cJSON.h>

static struct sessions *service;
static char known[SESSION_ID_MAX + 1];

static void start(void)
{
    struct session_settings settings = {
        .ops = &store_memory,
        .store = {.max_value = 4096, .max_session = 65536, .max_bytes = 1 << 20},
        .cookie_name = STR("SSID"),
        .alphabet = STR("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
        .timeout = 1000,
    };
    struct buffer error = BUFFER_EMPTY;
    struct session s;
    service = sessions_open(&settings, &error);
    CHECK(service != NULL);
    session_init(&s, service, STR_NONE, false, 1);
    CHECK(session_set(&s, STR("mine"), STR("1")) == SESSION_OK);
    memcpy(known, s.id, sizeof known);
}

static void check_header(struct str header)
{
    struct session s;
    const char *id;
    session_init(&s, service, header, false, 1);
    CHECK(session_id(&s, &id) == SESSION_OK);
    bool has = memmem(header.ptr, header.len, known, strlen(known)) != NULL;
    CHECK(id[0] == '\0' || (has && strcmp(id, known) == 0));
}

/* With the header put before the real cookie, as a parent domain or an attacker might. */
static void check_beside(struct str header)
{
    struct buffer text = BUFFER_EMPTY;
    struct session s;
    const char *id;
    buffer_append_str(&text, header);
    buffer_printf(&text, "; SSID=%s", known);
    session_init(&s, service, buffer_str(&text), false, 1);
    CHECK(session_id(&s, &id) == SESSION_OK);
    CHECK(id[0] == '\0' || strcmp(id, known) == 0);
    buffer_free(&text);
}

static void check_value(struct str value)
{
    struct session s;
    struct buffer out = BUFFER_EMPTY;
    session_init(&s, service, STR_NONE, false, 1);
    if (session_set(&s, STR("key"), value) == SESSION_OK) {
        CHECK(session_get(&s, STR("key"), &out) == SESSION_OK && str_eq(buffer_str(&out), value));
        out.len = 0;
        CHECK(session_set(&s, STR("z"), STR("[true]")) == SESSION_OK);
        CHECK(session_get_all(&s, &out) == SESSION_OK && json_text_is_valid(buffer_str(&out)));
        cJSON *tree = cJSON_ParseWithLength(out.data, out.len);
        CHECK(tree != NULL && cJSON_GetArraySize(tree) == 2);
        cJSON_Delete(tree);
        int64_t sum;
        enum session_result result = session_increment(&s, STR("key"), 1, &sum);
        CHECK(result == SESSION_OK || result == SESSION_CONFLICT);
        CHECK(session_destroy(&s) == SESSION_OK);
    }
    CHECK(sessions_count(service) == 1);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (service == NULL) {
        start();
    }
    struct str text = {(const char *)data, size};
    check_header(text);
    check_beside(text);
    check_value(text);
    return 0;
}

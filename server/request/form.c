#include "request/form.h"

void form_init(struct form *form, size_t max_pairs, size_t max_pair, bool (*on_pair)(void *, struct str, struct str),
               void *arg)
{
    *form = (struct form){.max_pairs = max_pairs, .max_pair = max_pair, .on_pair = on_pair, .arg = arg};
}

static void put(struct form *form, char c)
{
    if (form->scratch.len >= form->max_pair) {
        form->result = FORM_TOO_LARGE;
        return;
    }
    form->seen = true;
    if (!buffer_append_char(&form->scratch, c)) {
        form->result = FORM_NO_MEMORY;
    }
}

/* The escape turned out to be none: its bytes stand for themselves. */
static void put_broken_escape(struct form *form)
{
    uint8_t held = form->escape_len;
    form->escape_len = 0;
    for (uint8_t i = 0; i < held && form->result == FORM_OK; i++) {
        put(form, i == 0 ? '%' : form->escape[i - 1]);
    }
}

static void end_pair(struct form *form)
{
    put_broken_escape(form);
    if (form->result == FORM_OK && form->seen) {
        size_t name_len = form->has_value ? form->name_len : form->scratch.len;
        const char *bytes = form->scratch.data != NULL ? form->scratch.data : "";
        struct str name = {bytes, name_len};
        struct str value = {bytes + name_len, form->scratch.len - name_len};
        if (form->pairs >= form->max_pairs) {
            form->result = FORM_TOO_MANY;
        } else if (!form->on_pair(form->arg, name, value)) {
            form->result = FORM_NO_MEMORY;
        }
        form->pairs++;
    }
    form->scratch.len = 0;
    form->has_value = false;
    form->seen = false;
}

/* One byte inside "%XX". */
static void take_escape(struct form *form, char c)
{
    if (hex_digit(c) < 0) {
        put_broken_escape(form);
        return;
    }
    if (form->escape_len == 1) {
        form->escape[0] = c;
        form->escape_len = 2;
        return;
    }
    form->escape_len = 0;
    put(form, (char)(hex_digit(form->escape[0]) << 4 | hex_digit(c)));
}

static void take(struct form *form, char c)
{
    if (form->escape_len > 0) {
        bool is_digit = hex_digit(c) >= 0;
        take_escape(form, c);
        if (is_digit) {
            return;
        }
    }
    switch (c) {
    case '&': end_pair(form); break;
    case '=':
        if (form->has_value) {
            put(form, '=');
            break;
        }
        form->has_value = true;
        form->seen = true;
        form->name_len = form->scratch.len;
        break;
    case '+': put(form, ' '); break;
    case '%': form->escape_len = 1; break;
    default: put(form, c);
    }
}

enum form_result form_feed(struct form *form, const char *data, size_t len)
{
    for (size_t i = 0; i < len && form->result == FORM_OK; i++) {
        take(form, data[i]);
    }
    return form->result;
}

enum form_result form_finish(struct form *form)
{
    if (form->result == FORM_OK) {
        end_pair(form);
    }
    return form->result;
}

void form_free(struct form *form)
{
    buffer_free(&form->scratch);
}

#include "loop/config_hold.h"

#include "base/buffer.h"
#include "config/config.h"

#include <stdlib.h>

static void end_hold(struct config_hold *hold)
{
    config_unref((struct config *)(uintptr_t)hold->config);
    free(hold->default_headers);
    free(hold);
}

static void retire(struct config_hold *hold)
{
    if (hold == NULL) {
        return;
    }
    hold->retired = true;
    if (hold->users == 0) {
        end_hold(hold);
    }
}

void config_hold_set(struct loop *loop, struct config *config)
{
    struct config_hold *hold = malloc(sizeof *hold);
    CHECK(hold != NULL);
    *hold = (struct config_hold){.config = config_ref(config)};
    struct buffer text = BUFFER_EMPTY;
    for (size_t i = 0; i < config->default_headers.count; i++) {
        const struct config_header *header = &config->default_headers.items[i];
        buffer_append_str(&text, header->name);
        buffer_append_z(&text, ": ");
        buffer_append_str(&text, header->value);
        buffer_append_z(&text, "\r\n");
    }
    CHECK(!text.failed);
    hold->default_headers = text.data;
    hold->default_headers_len = text.len;
    struct config_hold *old = config_hold_of(loop);
    loop_slot_set(loop, LOOP_SLOT_CONFIG, hold);
    retire(old);
}

struct config_hold *config_hold_take(struct loop *loop)
{
    struct config_hold *hold = config_hold_of(loop);
    hold->users++;
    return hold;
}

void config_hold_drop(struct config_hold *hold)
{
    CHECK(hold->users > 0);
    hold->users--;
    if (hold->users == 0 && hold->retired) {
        end_hold(hold);
    }
}

void config_hold_clear(struct loop *loop)
{
    struct config_hold *hold = config_hold_of(loop);
    loop_slot_set(loop, LOOP_SLOT_CONFIG, NULL);
    retire(hold);
}

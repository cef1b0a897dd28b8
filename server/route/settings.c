#include "route/settings.h"

#include "observe/log.h"

#include <stdlib.h>

static struct str copy(struct str s)
{
    char *p = strndup(s.ptr != NULL ? s.ptr : "", s.len);
    return (struct str){p, p != NULL ? s.len : 0};
}

static struct str *copy_all(const struct str *items, size_t count)
{
    struct str *all = calloc(count + 1, sizeof *all);
    for (size_t i = 0; all != NULL && i < count; i++) {
        all[i] = copy(items[i]);
    }
    return all;
}

static void free_all(struct str *items, size_t count)
{
    for (size_t i = 0; items != NULL && i < count; i++) {
        free((char *)items[i].ptr);
    }
    free(items);
}

static bool take_extensions(struct map *to, const struct map *from)
{
    size_t cursor = 0;
    struct str key;
    void *value;
    while (map_next(from, &cursor, &key, &value)) {
        if (!map_put(to, key, to, NULL)) {
            return false;
        }
    }
    return true;
}

bool settings_take(struct index_settings *settings, const struct config *config)
{
    struct str root = config->web_root_name.len > 0 ? config->web_root_name : config->web_root;
    while (root.len > 1 && root.ptr[root.len - 1] == '/') {
        root.len--;
    }
    if (root.len < 2 || root.ptr[0] != '/') {
        log_error("cannot serve \"%.*s\": the web directory must be a directory of its own, not the whole file system",
                  STR_ARG(root));
        return false;
    }
    *settings = (struct index_settings){
        .layout = (int)config->layout,
        .root = copy(root),
        .index = copy_all(config->index_priority.items, config->index_priority.count),
        .index_count = config->index_priority.count,
        .max_depth = (size_t)config->max_dir_depth,
        .max_length = (size_t)config->max_file_path_length,
        .symlinks_outside = config->symlinks_outside,
        .run_c = config->enable_c,
        .run_so = config->enable_so,
        .build_ahead = config->build_ahead,
        .private = copy_all(config->private_paths.items, config->private_paths.count),
        .private_count = config->private_paths.count,
    };
    if (settings->root.ptr == NULL || settings->index == NULL || settings->private == NULL ||
        !take_extensions(&settings->shown, &config->ext_types) ||
        !take_extensions(&settings->forwarded, &config->forward_ext)) {
        log_error("out of memory while reading the settings of the site index");
        settings_free(settings);
        return false;
    }
    return true;
}

void settings_free(struct index_settings *settings)
{
    free((char *)settings->root.ptr);
    free_all(settings->index, settings->index_count);
    free_all(settings->private, settings->private_count);
    map_free(&settings->shown);
    map_free(&settings->forwarded);
    *settings = (struct index_settings){0};
}

bool settings_path_is_private(const struct index_settings *settings, struct str real)
{
    for (size_t i = 0; i < settings->private_count; i++) {
        if (str_eq(settings->private[i], real)) {
            return true;
        }
    }
    return false;
}

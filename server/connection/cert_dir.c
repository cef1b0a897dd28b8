#include "connection/cert_dir.h"

#include "base/check.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define CHAIN_NAME "fullchain"
#define KEY_NAME "privkey"

enum { PEM_MAX = 1 << 20 };

void cert_dir_init(struct cert_dir *dir)
{
    *dir = (struct cert_dir){0};
    list_init(&dir->entries);
}

static void wipe(struct buffer *secret)
{
    if (secret->data != NULL) {
        OPENSSL_cleanse(secret->data, secret->cap);
    }
    buffer_free(secret);
}

static void free_entry(struct cert_entry *entry)
{
    list_remove(&entry->node);
    free(entry->directory);
    free(entry->suffix);
    free(entry->chain_path);
    free(entry->key_path);
    free(entry->trouble);
    free(entry->staple);
    buffer_free(&entry->chain);
    wipe(&entry->key);
    cert_pair_unref(entry->pair);
    free(entry);
}

void cert_dir_forget(struct cert_dir *dir)
{
    LIST_EACH(node, &dir->entries) {
        free_entry(LIST_ENTRY(node, struct cert_entry, node));
    }
    free(dir->trouble);
    dir->trouble = NULL;
}

void cert_dir_free(struct cert_dir *dir)
{
    cert_dir_forget(dir);
}

size_t cert_dir_count(const struct cert_dir *dir)
{
    size_t count = 0;
    LIST_EACH(node, &dir->entries) {
        count += LIST_ENTRY(node, struct cert_entry, node)->pair != NULL;
    }
    return count;
}

static void say(const struct cert_dir *dir, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(const struct cert_dir *dir, enum log_level level, const char *format, ...)
{
    if (dir->quiet) {
        return;
    }
    struct buffer text = BUFFER_EMPTY;
    va_list args;
    va_start(args, format);
    buffer_vprintf(&text, format, args);
    va_end(args);
    log_write(level, "%.*s", STR_ARG(buffer_str(&text)));
    buffer_free(&text);
}

/* ---- entries ---------------------------------------------------------------------------------- */

static char *join(const char *a, const char *b, const char *c, const char *d)
{
    char *out = NULL;
    CHECK(asprintf(&out, "%s%s%s%s", a, b, c, d) >= 0);
    return out;
}

/* Directories are looked at in the order of the entries, so that all of them are passed once. */
static void go_to(struct cert_dir *dir, const char *directory)
{
    while (dir->place != &dir->entries &&
           strcmp(LIST_ENTRY(dir->place, struct cert_entry, node)->directory, directory) < 0) {
        dir->place = dir->place->next;
    }
}

static struct cert_entry *find_entry(const struct cert_dir *dir, const char *directory, const char *suffix)
{
    for (const struct list *node = dir->place; node != &dir->entries; node = node->next) {
        struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        if (strcmp(entry->directory, directory) != 0) {
            break;
        }
        if (strcmp(entry->suffix, suffix) == 0) {
            return entry;
        }
    }
    return NULL;
}

static int compare(const struct cert_entry *a, const struct cert_entry *b)
{
    int order = strcmp(a->directory, b->directory);
    return order != 0 ? order : strcmp(a->suffix, b->suffix);
}

static void insert_sorted(struct cert_dir *dir, struct cert_entry *entry)
{
    struct list *before = dir->place;
    while (before != &dir->entries && compare(LIST_ENTRY(before, struct cert_entry, node), entry) < 0) {
        before = before->next;
    }
    list_append(before, &entry->node); /* at the end of the list that begins there: in front of it */
    if (before == dir->place) {
        dir->place = &entry->node;
    }
}

static struct cert_entry *add_entry(struct cert_dir *dir, const char *path, const char *directory, const char *suffix)
{
    struct cert_entry *entry = calloc(1, sizeof *entry);
    CHECK(entry != NULL);
    entry->directory = join(directory, "", "", "");
    entry->suffix = join(suffix, "", "", "");
    char *prefix = join(path, "/", directory, "/");
    entry->chain_path = join(prefix, CHAIN_NAME, suffix, ".pem");
    entry->key_path = join(prefix, KEY_NAME, suffix, ".pem");
    free(prefix);
    insert_sorted(dir, entry);
    return entry;
}

/* ---- one pair ----------------------------------------------------------------------------------- */

static bool take_stamp(const char *path, struct cert_stamp *stamp, mode_t *mode)
{
    struct stat st;
    *stamp = (struct cert_stamp){0};
    if (stat(path, &st) != 0) {
        stamp->size = -errno; /* another error is another content */
        return false;
    }
    stamp->device = st.st_dev;
    stamp->inode = st.st_ino;
    stamp->size = st.st_size;
    stamp->modified = st.st_mtim;
    stamp->changed = st.st_ctim;
    *mode = st.st_mode;
    return true;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same_stamp(const struct cert_stamp *a, const struct cert_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           same_time(a->modified, b->modified) && same_time(a->changed, b->changed);
}

static bool read_pem(const char *path, struct buffer *out, struct buffer *why)
{
    if (file_read(path, PEM_MAX, out)) {
        return true;
    }
    const char *error = errno == EFBIG ? "it is larger than a certificate can be" : strerror(errno);
    buffer_printf(why, "%s cannot be read: %s", path, error);
    return false;
}

static void set_trouble(struct cert_dir *dir, struct cert_entry *entry, const struct buffer *why)
{
    char *text = why->len > 0 ? strndup(why->data, why->len) : NULL;
    bool news = text != NULL && (entry->trouble == NULL || strcmp(entry->trouble, text) != 0);
    free(entry->trouble);
    entry->trouble = text;
    if (news) {
        say(dir, LOG_ERROR, "certificate %s%s not taken: %s; %s", entry->directory, entry->suffix, text,
            entry->pair != NULL ? "the one before stays in use" : "it is not used");
    }
}

static void use_pair(struct cert_dir *dir, struct cert_entry *entry, struct cert_pair *pair, mode_t key_mode)
{
    bool first = entry->pair == NULL;
    free(entry->staple);
    entry->staple = NULL;
    cert_pair_unref(entry->pair);
    entry->pair = pair;
    char date[32] = "";
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&pair->not_after, &tm));
    say(dir, LOG_NOTICE, "certificate %s%s %s: %s, %s%s, valid until %s", entry->directory, entry->suffix,
        first ? "loaded" : "replaced", cert_kind_name(pair->kind),
        pair->name_count > 0 ? pair->names[0].ptr : "no name", pair->name_count > 1 ? " and others" : "", date);
    if ((key_mode & S_IRWXO) != 0) {
        say(dir, LOG_WARNING, "%s can be read by every user of this machine: chmod 600 it", entry->key_path);
    }
}

static void print_date(time_t time, char out[32])
{
    struct tm tm;
    strftime(out, 32, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&time, &tm));
}

/* Clients accept what is in use and would not accept `pair`; `why` says so. */
static bool would_harm(const struct cert_entry *entry, const struct cert_pair *pair, struct buffer *why)
{
    time_t now = time(NULL);
    const struct cert_pair *before = entry->pair;
    char date[32];
    char text[NAME_MAX + 1] = "";
    for (size_t i = 0; i < NAME_MAX && entry->directory[i] != '\0'; i++) {
        text[i] = ascii_lower(entry->directory[i]);
    }
    struct str host = str_of(text);
    if (before == NULL || !cert_pair_is_valid(before, now)) {
        return false;
    }
    if (pair->not_after <= now) {
        print_date(pair->not_after, date);
        buffer_printf(why, "it has ended, on %s", date);
    } else if (pair->not_before > now) {
        print_date(pair->not_before, date);
        buffer_printf(why, "it is not valid before %s", date);
    } else if (!before->self_signed && cert_pair_is_for(before, host) && !cert_pair_is_for(pair, host)) {
        buffer_printf(why, "it is not for %s", entry->directory);
    }
    return why->len > 0;
}

/* True when another pair is in use now. */
static bool look_at(struct cert_dir *dir, struct cert_entry *entry)
{
    struct cert_stamp chain_stamp;
    struct cert_stamp key_stamp;
    mode_t mode = 0;
    take_stamp(entry->chain_path, &chain_stamp, &mode);
    take_stamp(entry->key_path, &key_stamp, &mode);
    if (same_stamp(&chain_stamp, &entry->chain_stamp) && same_stamp(&key_stamp, &entry->key_stamp)) {
        return false;
    }
    entry->chain_stamp = chain_stamp;
    entry->key_stamp = key_stamp;
    struct buffer why = BUFFER_EMPTY;
    struct buffer chain = BUFFER_EMPTY;
    struct buffer key = BUFFER_EMPTY;
    struct cert_pair *pair = NULL;
    if (read_pem(entry->chain_path, &chain, &why) && read_pem(entry->key_path, &key, &why)) {
        pair = cert_pair_parse(buffer_str(&chain), buffer_str(&key), &why);
    }
    if (pair != NULL && would_harm(entry, pair, &why)) {
        cert_pair_unref(pair);
        pair = NULL;
        entry->chain_stamp = (struct cert_stamp){0}; /* its time may come: it is looked at again */
    }
    set_trouble(dir, entry, &why);
    buffer_free(&why);
    bool same = pair != NULL && entry->pair != NULL && chain.len == entry->chain.len && key.len == entry->key.len &&
                memcmp(chain.data, entry->chain.data, chain.len) == 0 &&
                memcmp(key.data, entry->key.data, key.len) == 0;
    if (pair == NULL || same) {
        cert_pair_unref(pair);
        buffer_free(&chain);
        wipe(&key);
        return false;
    }
    buffer_free(&entry->chain);
    wipe(&entry->key);
    entry->chain = chain;
    entry->key = key;
    use_pair(dir, entry, pair, mode);
    return true;
}

/* ---- the directory -------------------------------------------------------------------------------- */

/* "fullchain.pem" -> "", "fullchain-rsa.pem" -> "-rsa"; the same of privkey. False: another file. */
static bool suffix_of(const char *name, char out[NAME_MAX + 1])
{
    static const char *const prefixes[] = {CHAIN_NAME, KEY_NAME};
    struct str text = str_of(name);
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        struct str prefix = str_of(prefixes[i]);
        if (!str_starts(text, prefix) || !str_ends(text, STR(".pem")) || text.len < prefix.len + 4) {
            continue;
        }
        struct str suffix = {text.ptr + prefix.len, text.len - prefix.len - 4};
        if (suffix.len == 0 || suffix.ptr[0] == '-') {
            memcpy(out, suffix.ptr, suffix.len);
            out[suffix.len] = '\0';
            return true;
        }
    }
    return false;
}

static bool scan_domain(struct cert_dir *dir, const char *path, const char *directory)
{
    char *full = join(path, "/", directory, "");
    DIR *d = opendir(full);
    free(full);
    bool changed = false;
    const struct dirent *item;
    while (d != NULL && (item = readdir(d)) != NULL) {
        char suffix[NAME_MAX + 1];
        if (!suffix_of(item->d_name, suffix)) {
            continue;
        }
        struct cert_entry *entry = find_entry(dir, directory, suffix);
        if (entry == NULL) {
            entry = add_entry(dir, path, directory, suffix);
        }
        if (!entry->seen) {
            entry->seen = true;
            changed = look_at(dir, entry) || changed;
            bool valid = entry->pair != NULL && cert_pair_is_valid(entry->pair, time(NULL));
            changed = changed || valid != entry->valid; /* another of the same names may be better now */
            entry->valid = valid;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return changed;
}

static bool drop_unseen(struct cert_dir *dir)
{
    bool changed = false;
    LIST_EACH(node, &dir->entries) {
        struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        if (entry->seen) {
            continue;
        }
        if (entry->pair != NULL) {
            say(dir, LOG_NOTICE, "certificate %s%s is gone and no longer used", entry->directory, entry->suffix);
            changed = true;
        }
        free_entry(entry);
    }
    return changed;
}

static void cannot_read(struct cert_dir *dir, const char *path, int error)
{
    bool news = dir->trouble == NULL;
    free(dir->trouble);
    dir->trouble = join(path, " cannot be read: ", strerror(error), "");
    if (news && error != ENOENT) {
        say(dir, LOG_ERROR, "%s; certificates in use stay in use", dir->trouble);
    }
}

static int is_visible(const struct dirent *item)
{
    return item->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

bool cert_dir_scan(struct cert_dir *dir, const char *path)
{
    struct dirent **items = NULL;
    int count = scandir(path, &items, is_visible, by_bytes);
    if (count < 0) {
        cannot_read(dir, path, errno);
        return false;
    }
    free(dir->trouble);
    dir->trouble = NULL;
    LIST_EACH(node, &dir->entries) {
        LIST_ENTRY(node, struct cert_entry, node)->seen = false;
    }
    bool changed = false;
    dir->place = dir->entries.next;
    for (int i = 0; i < count; i++) {
        go_to(dir, items[i]->d_name);
        changed = scan_domain(dir, path, items[i]->d_name) || changed;
        free(items[i]);
    }
    free(items);
    return drop_unseen(dir) || changed;
}

/* ---- how long they last ------------------------------------------------------------------------------ */

static long days_left(const struct cert_pair *pair, time_t now)
{
    return (long)((pair->not_after - now) / 86400);
}

void cert_dir_warn_expiry(const struct cert_dir *dir, time_t now)
{
    LIST_EACH(node, &dir->entries) {
        const struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        if (entry->pair == NULL) {
            continue;
        }
        if (entry->pair->not_before > now) {
            char date[32];
            print_date(entry->pair->not_before, date);
            say(dir, LOG_WARNING, "certificate %s%s is not valid before %s: clients refuse it until then",
                entry->directory, entry->suffix, date);
        }
        if (days_left(entry->pair, now) >= CERT_WARN_DAYS) {
            continue;
        }
        if (entry->pair->not_after <= now) {
            say(dir, LOG_WARNING, "certificate %s%s has ended: clients refuse it; renew %s", entry->directory,
                entry->suffix, entry->chain_path);
        } else {
            long days = days_left(entry->pair, now);
            say(dir, LOG_WARNING, "certificate %s%s ends in %ld day%s: renew %s", entry->directory, entry->suffix, days,
                days == 1 ? "" : "s", entry->chain_path);
        }
    }
}

static void print_entry(const struct cert_entry *entry, time_t now, struct buffer *out)
{
    const struct cert_pair *pair = entry->pair;
    buffer_printf(out, "%s%s\n", entry->directory, entry->suffix);
    if (pair != NULL) {
        buffer_append_z(out, "  names    ");
        for (size_t i = 0; i < pair->name_count; i++) {
            buffer_printf(out, "%s%s", i > 0 ? ", " : "", pair->names[i].ptr);
        }
        char date[32];
        print_date(pair->not_after, date);
        buffer_printf(out, "\n  key      %s, %u bits\n  issuer   ", cert_kind_name(pair->kind), pair->bits);
        cert_pair_print_issuer(pair, out);
        buffer_printf(out, "%s\n  expires  %s, ", pair->self_signed ? " (self-signed)" : "", date);
        long days = days_left(pair, now);
        if (pair->not_after <= now) {
            buffer_append_z(out, "EXPIRED");
        } else {
            buffer_printf(out, "in %ld day%s%s", days, days == 1 ? "" : "s", days < CERT_WARN_DAYS ? ": RENEW IT" : "");
        }
        buffer_append_char(out, '\n');
    }
    if (entry->trouble != NULL) {
        buffer_printf(out, "  %s  %s\n", pair != NULL ? "not taken" : "not used", entry->trouble);
    }
}

void cert_dir_print(const struct cert_dir *dir, const char *path, time_t now, struct buffer *out)
{
    if (dir->trouble != NULL) {
        buffer_printf(out, "%s\n", dir->trouble);
    }
    LIST_EACH(node, &dir->entries) {
        print_entry(LIST_ENTRY(node, struct cert_entry, node), now, out);
    }
    if (list_is_empty(&dir->entries)) {
        buffer_printf(
            out, "no certificates in %s (wanted: <domain>/" CHAIN_NAME ".pem and <domain>/" KEY_NAME ".pem)\n", path);
    }
}

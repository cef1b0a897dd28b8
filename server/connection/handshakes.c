#include "connection/handshakes.h"

#include <pthread.h>
#include <stdlib.h>

enum { PARTS = 16, BUCKETS = 256, STALE_MS = 5000 };

struct entry {
    struct entry *next;
    uint8_t family;
    uint8_t key[16];
    unsigned unfinished;
    uint64_t last_ms;
    double allowance; /* handshakes that may begin at once */
};

static struct part {
    pthread_mutex_t lock;
    struct entry *buckets[BUCKETS];
} parts[PARTS] = {[0 ... PARTS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static void key_of(const struct address *address, uint8_t key[16])
{
    memset(key, 0, 16);
    memcpy(key, address->ip, address->family == AF_INET ? 4 : 8);
}

static uint64_t hash_of(const uint8_t key[16], uint8_t family)
{
    return str_hash((struct str){(const char *)key, 16}) + family;
}

/* Forgets on its way those who were not here for a while. NULL: not there. */
static struct entry *find(struct entry **bucket, const uint8_t key[16], uint8_t family, uint64_t now_ms)
{
    struct entry *found = NULL;
    while (*bucket != NULL) {
        struct entry *entry = *bucket;
        if (entry->family == family && memcmp(entry->key, key, sizeof entry->key) == 0) {
            found = entry;
        } else if (entry->unfinished == 0 && entry->last_ms + STALE_MS < now_ms) {
            *bucket = entry->next;
            free(entry);
            continue;
        }
        bucket = &entry->next;
    }
    return found;
}

static bool take(struct entry *entry, uint64_t now_ms, const struct handshake_limits *limits)
{
    if (limits->unfinished > 0 && entry->unfinished >= limits->unfinished) {
        return false;
    }
    if (limits->per_second > 0) {
        double most = 2.0 * limits->per_second;
        entry->allowance += (double)(now_ms - entry->last_ms) * limits->per_second / 1000;
        entry->allowance = entry->allowance > most ? most : entry->allowance;
        entry->last_ms = now_ms;
        if (entry->allowance < 1) {
            return false;
        }
        entry->allowance -= 1;
    }
    entry->last_ms = now_ms;
    entry->unfinished++;
    return true;
}

bool handshakes_begin(const struct address *address, uint64_t now_ms, const struct handshake_limits *limits)
{
    uint8_t key[16];
    key_of(address, key);
    uint64_t hash = hash_of(key, address->family);
    struct part *part = &parts[hash % PARTS];
    struct entry **bucket = &part->buckets[hash / PARTS % BUCKETS];
    pthread_mutex_lock(&part->lock);
    struct entry *entry = find(bucket, key, address->family, now_ms);
    if (entry == NULL && (entry = malloc(sizeof *entry)) != NULL) {
        *entry = (struct entry){.next = *bucket, .family = address->family, .last_ms = now_ms};
        entry->allowance = 2.0 * limits->per_second;
        memcpy(entry->key, key, sizeof entry->key);
        *bucket = entry;
    }
    bool ok = entry != NULL && take(entry, now_ms, limits);
    pthread_mutex_unlock(&part->lock);
    return ok;
}

void handshakes_end(const struct address *address)
{
    uint8_t key[16];
    key_of(address, key);
    uint64_t hash = hash_of(key, address->family);
    struct part *part = &parts[hash % PARTS];
    pthread_mutex_lock(&part->lock);
    struct entry *entry = find(&part->buckets[hash / PARTS % BUCKETS], key, address->family, 0);
    CHECK(entry != NULL && entry->unfinished > 0);
    entry->unfinished--;
    pthread_mutex_unlock(&part->lock);
}

void handshakes_free(void)
{
    for (int i = 0; i < PARTS; i++) {
        for (int k = 0; k < BUCKETS; k++) {
            while (parts[i].buckets[k] != NULL) {
                struct entry *entry = parts[i].buckets[k];
                parts[i].buckets[k] = entry->next;
                free(entry);
            }
        }
    }
}

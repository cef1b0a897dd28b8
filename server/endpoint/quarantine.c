#include "endpoint/quarantine.h"

#include "supervisor/clock.h"
#include "supervisor/worker.h"

#include <stdlib.h>

struct entry {
    struct list node;
    char *file;
    unsigned char build[HASH_SIZE];
    uint64_t until_ms;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list entries = {&entries, &entries};

static struct entry *find(const char *file)
{
    LIST_EACH(node, &entries) {
        struct entry *entry = LIST_ENTRY(node, struct entry, node);
        if (strcmp(entry->file, file) == 0) {
            return entry;
        }
    }
    return NULL;
}

static struct entry *create(const char *file)
{
    struct entry *entry = calloc(1, sizeof *entry);
    char *copy = strdup(file);
    if (entry == NULL || copy == NULL) {
        free(entry);
        free(copy);
        return NULL;
    }
    entry->file = copy;
    list_append(&entries, &entry->node);
    return entry;
}

void quarantine_set(const char *file, const unsigned char build[HASH_SIZE], uint64_t until_ms)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = find(file);
    entry = entry != NULL ? entry : create(file);
    if (entry != NULL) {
        memcpy(entry->build, build, HASH_SIZE);
        entry->until_ms = until_ms;
    }
    pthread_mutex_unlock(&lock);
}

uint64_t quarantine_until(const char *file, const unsigned char build[HASH_SIZE])
{
    pthread_mutex_lock(&lock);
    const struct entry *entry = find(file);
    bool held = entry != NULL && memcmp(entry->build, build, HASH_SIZE) == 0 && entry->until_ms > clock_now_ms();
    uint64_t until = held ? entry->until_ms : 0;
    pthread_mutex_unlock(&lock);
    return until;
}

void quarantine_release(const char *file, const unsigned char build[HASH_SIZE])
{
    pthread_mutex_lock(&lock);
    struct entry *entry = find(file);
    bool same = entry != NULL && memcmp(entry->build, build, HASH_SIZE) == 0;
    if (entry != NULL) {
        list_remove(&entry->node);
        free(entry->file);
        free(entry);
    }
    pthread_mutex_unlock(&lock);
    if (entry != NULL) {
        worker_released(file, same ? "the time has passed" : "its source has changed");
    }
}

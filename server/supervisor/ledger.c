#include "supervisor/ledger.h"

#include <stdlib.h>

#define NUMBER_MOST 9007199254740992.0 /* up to here a double holds every whole number */

void ledger_init(struct ledger *ledger, size_t most)
{
    *ledger = (struct ledger){.most = most};
    list_init(&ledger->accounts);
}

static void forget(struct ledger *ledger, struct account *account)
{
    map_remove(&ledger->by_file, str_of(account->file));
    list_remove(&account->node);
    free(account->file);
    free(account);
}

static void forget_quiet_ones(struct ledger *ledger)
{
    while (ledger->by_file.count > ledger->most) {
        forget(ledger, LIST_ENTRY(ledger->accounts.prev, struct account, node));
    }
}

void ledger_limit(struct ledger *ledger, size_t most)
{
    ledger->most = most;
    forget_quiet_ones(ledger);
}

void ledger_free(struct ledger *ledger)
{
    LIST_EACH(node, &ledger->accounts) {
        forget(ledger, LIST_ENTRY(node, struct account, node));
    }
    map_free(&ledger->by_file);
}

struct figures *figures_create(void)
{
    return calloc(1, sizeof(struct figures));
}

void figures_free(struct figures *figures)
{
    if (figures == NULL) {
        return;
    }
    struct str file;
    void *share;
    for (size_t i = 0; map_next(&figures->endpoints, &i, &file, &share);) {
        free(share);
    }
    map_free(&figures->endpoints);
    free(figures);
}

/* ---- reading ---------------------------------------------------------------------------------- */

/* The member when it is a number that a counter or a size can be; otherwise what was. */
static int64_t member(const cJSON *object, const char *name, int64_t before)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    bool good = cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= NUMBER_MOST;
    return good ? (int64_t)item->valuedouble : before;
}

static void add_growth(int64_t *total, int64_t before, int64_t now)
{
    *total += now >= before ? now - before : now;
}

static void take_server(struct ledger *ledger, struct figures *from, const cJSON *server)
{
    for (int i = 0; i < SERVER_FIGURES; i++) {
        if (server_infos[i].kind == METRIC_IS_COUNTER) {
            int64_t now = member(server, server_infos[i].key, from->server[i]);
            add_growth(&ledger->server[i], from->server[i], now);
            from->server[i] = now;
        }
    }
}

static void take_loops(struct figures *from, const cJSON *loops)
{
    const cJSON *item;
    from->loops = 0;
    cJSON_ArrayForEach(item, loops)
    {
        if (from->loops == METRICS_LOOPS) {
            return;
        }
        unsigned i = from->loops++;
        for (int k = 0; k < LOOP_FIGURES; k++) {
            from->loop[i][k] = member(item, loop_infos[k].key, from->loop[i][k]);
        }
        from->waiting_us[i] = member(item, "waiting", 0);
    }
}

void ledger_take_figures(struct ledger *ledger, struct figures *from, const cJSON *body, uint64_t now_ms)
{
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(body, "metrics");
    const cJSON *worker = cJSON_GetObjectItemCaseSensitive(body, "worker");
    for (int i = 0; i < METRIC_COUNT; i++) {
        int64_t now = member(metrics, metric_infos[i].name, from->metric[i]);
        if (metric_infos[i].kind == METRIC_IS_COUNTER) {
            add_growth(&ledger->total[i], from->metric[i], now);
        }
        from->metric[i] = now;
    }
    for (int i = 0; i < WORKER_FIGURES; i++) {
        from->worker[i] = member(worker, worker_infos[i].key, from->worker[i]);
    }
    take_server(ledger, from, cJSON_GetObjectItemCaseSensitive(body, "server"));
    take_loops(from, cJSON_GetObjectItemCaseSensitive(body, "loops"));
    from->told_ms = now_ms;
}

int64_t figures_loop_lag_us(const struct figures *figures, unsigned loop, uint64_t now_ms)
{
    int64_t lag = figures->loop[loop][LOOP_FIGURE_LAG];
    int64_t waiting = figures->waiting_us[loop];
    if (waiting == 0) {
        return lag;
    }
    waiting += (int64_t)(now_ms - figures->told_ms) * 1000;
    return waiting > lag ? waiting : lag;
}

/* ---- endpoints ----------------------------------------------------------------------------------- */

/* The account of the file, as the one that changed last; made when there is none. NULL when out of memory. */
static struct account *account_of(struct ledger *ledger, const char *file)
{
    struct account *account = map_get(&ledger->by_file, str_of(file));
    if (account != NULL) {
        list_remove(&account->node);
        list_prepend(&ledger->accounts, &account->node);
        return account;
    }
    account = calloc(1, sizeof *account);
    char *copy = strdup(file);
    if (account == NULL || copy == NULL || !map_put(&ledger->by_file, str_of(file), account, NULL)) {
        free(account);
        free(copy);
        return NULL;
    }
    account->file = copy;
    list_prepend(&ledger->accounts, &account->node);
    forget_quiet_ones(ledger);
    return account;
}

/* What the teller told of this endpoint before; zeros at first. */
static int64_t *share_of(const struct ledger *ledger, struct figures *from, const char *file)
{
    int64_t *share = map_get(&from->endpoints, str_of(file));
    if (share != NULL || from->endpoints.count >= ledger->most) {
        return share;
    }
    share = calloc(ENDPOINT_FIGURES, sizeof *share);
    if (share != NULL && !map_put(&from->endpoints, str_of(file), share, NULL)) {
        free(share);
        return NULL;
    }
    return share;
}

void ledger_take_endpoints(struct ledger *ledger, struct figures *from, const cJSON *body)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(body, "endpoints"))
    {
        const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
        int64_t *share = file != NULL ? share_of(ledger, from, file) : NULL;
        struct account *account = share != NULL ? account_of(ledger, file) : NULL;
        for (int i = 0; account != NULL && i < ENDPOINT_FIGURES; i++) {
            int64_t now = member(item, endpoint_infos[i].key, share[i]);
            if (endpoint_infos[i].kind == METRIC_IS_COUNTER) {
                add_growth(&account->figure[i], share[i], now);
            }
            share[i] = now;
        }
    }
}

void ledger_count_crash(struct ledger *ledger, const char *file)
{
    struct account *account = account_of(ledger, file);
    if (account != NULL) {
        account->figure[ENDPOINT_FIGURE_CRASHES]++;
    }
}

/* ---- telling ------------------------------------------------------------------------------------- */

cJSON *ledger_print_metrics(const int64_t metric[METRIC_COUNT])
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < METRIC_COUNT; i++) {
        cJSON_AddNumberToObject(object, metric_infos[i].name, (double)(metric[i] > 0 ? metric[i] : 0));
    }
    return object;
}

cJSON *ledger_print_server(const struct ledger *ledger)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < SERVER_FIGURES; i++) {
        cJSON_AddNumberToObject(object, server_infos[i].key, (double)ledger->server[i]);
    }
    return object;
}

cJSON *ledger_print_endpoint(const char *file, const int64_t figure[ENDPOINT_FIGURES])
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "file", file);
    for (int i = 0; i < ENDPOINT_FIGURES; i++) {
        if (figure[i] > 0) {
            cJSON_AddNumberToObject(object, endpoint_infos[i].key, (double)figure[i]);
        }
    }
    return object;
}

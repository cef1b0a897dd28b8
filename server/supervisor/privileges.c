#include "supervisor/privileges.h"

#include "config/config.h"
#include "observe/log.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct identity {
    uid_t uid;
    gid_t gid;
    char name[256]; /* "" for a number without a name */
    char home[256];
};

enum { DESCRIPTORS_WANTED = 1 << 20 };

void privileges_raise_limits(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    if (limit.rlim_max < DESCRIPTORS_WANTED && geteuid() == 0) {
        struct rlimit more = {.rlim_cur = DESCRIPTORS_WANTED, .rlim_max = DESCRIPTORS_WANTED};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0) {
            return;
        }
    }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void take_names(struct identity *who, const struct passwd *entry)
{
    snprintf(who->name, sizeof who->name, "%s", entry->pw_name);
    snprintf(who->home, sizeof who->home, "%s", entry->pw_dir);
}

static bool find_user(struct str user, struct identity *who, struct buffer *why)
{
    uint64_t number;
    bool numeric = str_to_u64(user, UINT32_MAX - 1, &number);
    const struct passwd *entry = numeric ? getpwuid((uid_t)number) : getpwnam(user.ptr);
    if (entry == NULL && !numeric) {
        buffer_printf(why, "User \"%s\" does not exist; create it, or name another", user.ptr);
        return false;
    }
    who->uid = entry != NULL ? entry->pw_uid : (uid_t)number;
    who->gid = entry != NULL ? entry->pw_gid : (gid_t)number;
    if (entry != NULL) {
        take_names(who, entry);
    }
    return true;
}

static bool find_group(struct str group, gid_t *gid, struct buffer *why)
{
    uint64_t number;
    if (str_to_u64(group, UINT32_MAX - 1, &number)) {
        *gid = (gid_t)number;
        return true;
    }
    const struct group *entry = getgrnam(group.ptr);
    if (entry == NULL) {
        buffer_printf(why, "Group \"%s\" does not exist; create it, or name another", group.ptr);
        return false;
    }
    *gid = entry->gr_gid;
    return true;
}

/* Who the worker shall be; `who` stays as it is when that is who we are. */
static bool choose(const struct config *config, struct identity *who, struct buffer *why)
{
    if (config->user.len > 0) {
        if (!find_user(config->user, who, why)) {
            return false;
        }
    } else if (geteuid() == 0) {
        struct stat st;
        if (stat(config->web_root.ptr, &st) == 0 && st.st_uid != 0) {
            who->uid = st.st_uid;
            who->gid = st.st_gid;
            const struct passwd *entry = getpwuid(st.st_uid);
            if (entry != NULL) {
                who->gid = entry->pw_gid;
                take_names(who, entry);
            }
        }
    }
    return config->group.len == 0 || find_group(config->group, &who->gid, why);
}

/* What the worker writes must be its own; what exists already is left to its owner. */
static void make_directory(struct str path, const struct identity *who)
{
    if (path.len > 0 && mkdir(path.ptr, 0700) == 0 && lchown(path.ptr, who->uid, who->gid) != 0) {
        log_warning("cannot give %s to user %u: %s", path.ptr, (unsigned)who->uid, strerror(errno));
    }
}

static bool become(const struct identity *who, struct buffer *why)
{
    bool groups = who->name[0] != '\0' ? initgroups(who->name, who->gid) == 0 : setgroups(1, &who->gid) == 0;
    if (!groups || setresgid(who->gid, who->gid, who->gid) != 0 || setresuid(who->uid, who->uid, who->uid) != 0) {
        buffer_printf(why, "cannot become user %s (%u) and group %u: %s", who->name, (unsigned)who->uid,
                      (unsigned)who->gid, strerror(errno));
        return false;
    }
    if (who->uid != 0 && (setuid(0) == 0 || seteuid(0) == 0)) {
        buffer_append_z(why, "the rights of root cannot be given up for good");
        return false;
    }
    if (who->name[0] != '\0') {
        setenv("USER", who->name, 1);
        setenv("LOGNAME", who->name, 1);
        setenv("HOME", who->home, 1);
    }
    /* A change of user makes a process undumpable; core files of our own bugs are wanted. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return true;
}

bool privileges_drop(const struct config *config, struct buffer *why)
{
    struct identity who = {.uid = geteuid(), .gid = getegid()};
    if (!choose(config, &who, why)) {
        return false;
    }
    bool other = who.uid != geteuid() || who.gid != getegid();
    if (other && geteuid() != 0) {
        buffer_printf(why, "only root can become another user or group: start the server as root, or remove User and "
                           "Group from the config");
        return false;
    }
    if (other) {
        make_directory(config->sessions_dir, &who);
        make_directory(config->cache_dir.len > 0 ? config->cache_dir : STR("/var/cache/kiln"), &who);
        if (!become(&who, why)) {
            return false;
        }
    }
    if (config->no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        buffer_printf(why, "cannot set NoNewPrivileges: %s", strerror(errno));
        return false;
    }
    return true;
}

void privileges_warn(const struct config *config)
{
    struct stat st;
    if (geteuid() == 0 && config->user.len == 0 && stat(config->web_root.ptr, &st) == 0 && st.st_uid == 0) {
        log_warning("requests are served as root: set the option User to an account with fewer rights, or give "
                    "%s to one",
                    config->web_root.ptr);
    }
}

bool privileges_of_isolated(const struct config *config, uid_t *uid, gid_t *gid, bool *own, struct buffer *why)
{
    struct identity worker = {.uid = geteuid(), .gid = getegid()};
    if (!choose(config, &worker, why)) {
        return false;
    }
    struct identity who = worker;
    if (config->isolate_user.len > 0) {
        if (!find_user(config->isolate_user, &who, why)) {
            return false;
        }
        if (geteuid() != 0 && (who.uid != geteuid() || who.gid != getegid())) {
            buffer_append_z(why, "only root can start a process of another user: start the server as root, or remove "
                                 "IsolateUser from the config");
            return false;
        }
    }
    *uid = who.uid;
    *gid = who.gid;
    *own = who.uid != worker.uid && who.uid != 0;
    return true;
}

/* DESIGN: CertDir as whoever has the rights to read keys sees it: the supervisor, and
 * `kiln listcerts`. Each directory <domain>/ holds fullchain.pem and privkey.pem; further pairs
 * beside them have a word behind both names (fullchain-rsa.pem, privkey-rsa.pem). Symbolic links
 * are followed, so /etc/letsencrypt/live/ can be CertDir. A pair that was good stays in use
 * when its files become unreadable or do not fit together, until both are right again or
 * both are gone; likewise one that clients accept, when they would not accept the one that is
 * to take its place: it has ended, is of the future, or not for the host that the directory
 * is named after. Owns the PEM texts, which workers are given; they are wiped before their
 * memory is freed. */
#ifndef KILN_CONNECTION_CERT_DIR_H
#define KILN_CONNECTION_CERT_DIR_H

#include "base/list.h"
#include "connection/cert_pair.h"
#include "observe/log.h"

#include <sys/types.h>

enum { CERT_WARN_DAYS = 30 };

/* What tells one content of a file from another without reading it. */
struct cert_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
    struct timespec changed;
};

struct cert_entry {
    struct list node;
    char *directory; /* "example.com" */
    char *suffix; /* "" or "-rsa" */
    char *chain_path;
    char *key_path;
    struct cert_stamp chain_stamp;
    struct cert_stamp key_stamp;
    struct buffer chain; /* PEM of the pair in use */
    struct buffer key;
    struct cert_pair *pair; /* NULL: never was a good one */
    char *trouble; /* why the files as they are now cannot be used; NULL: they are in use */
    char *staple; /* hexadecimal, as a worker sent it (staple.h); NULL: none */
    double staple_until;
    double staple_renew;
    bool seen;
    bool valid; /* by its dates, when it was looked at */
};

struct cert_dir {
    struct list entries; /* by directory and suffix, in the order of bytes */
    struct list *place; /* while it is scanned: the first entry of the directory that is looked at */
    char *trouble; /* why the directory itself cannot be read; NULL */
    bool quiet; /* nothing is logged */
};

void cert_dir_init(struct cert_dir *dir);
void cert_dir_free(struct cert_dir *dir);
/* Looks at every file whose stamp is not the known one. True when what is in use has changed. Says
 * in the log what is new, what is wrong, and what is gone. */
bool cert_dir_scan(struct cert_dir *dir, const char *path);
/* As if nothing had been read yet. */
void cert_dir_forget(struct cert_dir *dir);
/* Pairs in use. */
size_t cert_dir_count(const struct cert_dir *dir);
/* Warnings of pairs that end within CERT_WARN_DAYS, or have ended. */
void cert_dir_warn_expiry(const struct cert_dir *dir, time_t now);
/* The table of `listcerts`. */
void cert_dir_print(const struct cert_dir *dir, const char *path, time_t now, struct buffer *out);

#endif

/* What the supervisor lays down for a host before anything that the worker says: who it becomes and what it
 * may do. It travels in a sealed memory file between two runs of the same program. A worker, which has fewer
 * rights than the supervisor, has no say in it but the name of the endpoint's file. */
#ifndef KILN_ISOLATE_ORDERS_H
#define KILN_ISOLATE_ORDERS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { HOST_ORDERS_FD = 4, HOST_ORDERS_MAGIC = 0x4f524431, HOST_PORTS = 64 };

struct host_orders {
    uint32_t magic;
    uid_t uid;
    gid_t gid;
    bool other_user; /* uid and gid are not ours yet */
    bool count_processes; /* the uid is not shared with the worker: RLIMIT_NPROC means something */
    bool write; /* in the whole directory */
    bool without_landlock; /* runs also where there is none */
    unsigned port_count;
    uint16_t ports[HOST_PORTS]; /* that it may connect to */
    uint64_t memory;
    uint64_t cpu; /* seconds; 0: no limit */
    uint64_t files;
    uint64_t threads;
    uint64_t file_size;
    char directory[PATH_MAX]; /* of the endpoint */
    char temp[PATH_MAX]; /* its own */
};

#endif

/* Frames over a Unix stream socket: u32 little-endian length, then that many bytes; fds may travel with a frame.
 *
 * struct tdm_conn is a non-blocking connection on a loop (tandemd and its clients, tandemd and its workers). Everything
 * is capped. The connection ends, with a typed reason through on_closed, on a frame longer than max_frame_bytes, on
 * half a frame to which no byte was added for stall_timeout_ns or that is not whole after frame_timeout_ns, on more
 * queued output than max_queue_bytes, and on more fds in flight than TDM_CONN_MAX_FDS. The other functions do the same
 * with blocking calls, for libtandem and the
 * workers. */
#ifndef TDM_COMMON_CONN_H
#define TDM_COMMON_CONN_H

#include <sys/types.h>
#include "common/loop.h"

#define TDM_CONN_MAX_FDS 240u /* the kernel's limit is 253 for one message */

struct tdm_conn;

struct tdm_conn_limits {
        uint32_t max_frame_bytes;
        uint64_t max_queue_bytes;
        uint64_t stall_timeout_ns; /* 0: never */
        uint64_t frame_timeout_ns; /* from its first byte to its last; 0: never */
        /* NULL, or told how much memory the connection holds now for frames that have arrived in part and for output
         * that waits. An error ends the connection with what is in err. May not call back. */
        int (*hold)(uint64_t bytes, struct tdm_error *err, void *userdata);
        /* NULL, or called when fds ride on the next byte of fd, before anything is received. Nothing is read until
         * tdm_conn_fds_came() says which byte and which fds it was. An error ends the connection. */
        int (*receive_fds)(int fd, struct tdm_error *err, void *userdata);
        /* NULL, or asked before each read whether this connection's turn has come. Nothing is read after a no, until
         * tdm_conn_go_on(); the time until then is not the peer's delay. May not call back. */
        bool (*may_read)(void *userdata);
        void (*took)(uint64_t ns, void *userdata); /* with may_read: this long a read and its on_frame took */
};

/* data and fds are valid during the call; take an fd by setting its entry to -1, the rest is closed afterwards.
 * A non-zero return closes the connection. */
typedef int (*tdm_conn_frame_fn)(struct tdm_conn *conn, const uint8_t *data, size_t size, int *fds, unsigned n_fds,
                                 void *userdata);
/* Called once, from the loop, when the peer left (code 0) or the connection had to end (err->code, err->message).
 * The callee destroys the conn here or later; nothing more is called for it. Not called by tdm_conn_destroy(). */
typedef void (*tdm_conn_closed_fn)(struct tdm_conn *conn, const struct tdm_error *err, void *userdata);

/* Takes fd on success. */
int tdm_conn_new(struct tdm_conn **ret, struct tdm_loop *loop, int fd, const struct tdm_conn_limits *limits,
                 tdm_conn_frame_fn on_frame, tdm_conn_closed_fn on_closed, void *userdata);
void tdm_conn_destroy(struct tdm_conn *conn);
void tdm_conn_destroyp(struct tdm_conn **conn);

/* Queues a frame (copied) and its fds (dup'd); sends at once what fits. -EPIPE after closing; -ENOBUFS when the queue
 * is full: then on_closed follows from the loop. */
int tdm_conn_send(struct tdm_conn *conn, const void *data, size_t size, const int *fds, unsigned n_fds);
/* Bytes queued and not yet taken by the kernel: back-pressure for producers. */
uint64_t tdm_conn_queued_bytes(const struct tdm_conn *conn);
/* Closes once the queue has drained (or after 1 s). on_closed is called with code 0. */
void tdm_conn_finish(struct tdm_conn *conn);
/* After receive_fds: the byte, and the fds, which are taken. Negative ones reach on_frame as they are. */
void tdm_conn_fds_came(struct tdm_conn *conn, uint8_t first, const int *fds, unsigned n_fds);
/* After a no of may_read: reads on. From the loop, not from a callback. on_frame may destroy the connection. */
void tdm_conn_go_on(struct tdm_conn *conn);
/* SO_PEERCRED at connection time. */
void tdm_conn_peer(const struct tdm_conn *conn, pid_t *ret_pid, uid_t *ret_uid, gid_t *ret_gid);

/* Blocking. 0, or a negative errno (-EPIPE: peer gone). fds stay the caller's. */
int tdm_frame_send(int fd, const void *data, size_t size, const int *fds, unsigned n_fds);

/* Incremental reader for a blocking or non-blocking fd: one recv() at most per call to fill(). */
struct tdm_frame_reader;
int tdm_frame_reader_new(struct tdm_frame_reader **ret, uint32_t max_frame_bytes);
void tdm_frame_reader_destroy(struct tdm_frame_reader *reader);
void tdm_frame_reader_destroyp(struct tdm_frame_reader **reader);
/* From now on no fds are received: fill() gives -EREMOTEIO, and the caller receives the next byte with the fds that
 * ride on it, if any do, and pushes them. */
void tdm_frame_reader_guard(struct tdm_frame_reader *reader);
/* For a peer that sends no fds: fill() takes all that has arrived, and fds are -EPROTO. */
void tdm_frame_reader_without_fds(struct tdm_frame_reader *reader);
/* The last fill() had room for more than there was. */
bool tdm_frame_reader_drained(const struct tdm_frame_reader *reader);
/* Takes the fds on success. -EPROTO: too many, or a frame is under way. */
int tdm_frame_reader_push(struct tdm_frame_reader *reader, uint8_t first, const int *fds, unsigned n_fds);
/* Reads what has arrived. >0 bytes, 0 end of stream, -EAGAIN, -EPROTO (frame too long, too many fds), other -errno. */
ssize_t tdm_frame_reader_fill(struct tdm_frame_reader *reader, int fd);
/* 1 and a frame, valid until the next call on the reader; 0 when none is complete (call it until then: a fill may
 * complete two frames, an empty one being the second). fds as in tdm_conn_frame_fn: what the caller does not take is
 * closed by the next call. */
int tdm_frame_reader_next(struct tdm_frame_reader *reader, const uint8_t **ret_data, size_t *ret_size, int **ret_fds,
                          unsigned *ret_n_fds);
/* Memory that it holds. */
size_t tdm_frame_reader_held(const struct tdm_frame_reader *reader);
/* Gives back a large buffer when it is empty. No frame may be in use. */
void tdm_frame_reader_trim(struct tdm_frame_reader *reader);
bool tdm_frame_reader_mid_frame(const struct tdm_frame_reader *reader); /* half a frame is held */

#endif

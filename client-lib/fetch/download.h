/* One file over HTTP(S), so that it is either whole and right, or not there under its name.
 *
 * Several connections fetch a big file. The bytes go to NAME.gguf.part, under a lock: a second download of the same
 * file is refused while the first runs. A transfer that breaks off is taken up where it stopped, in this run or in a
 * later one, as long as each answer says by its ETag that it is of the same file. What is whole is checked (size,
 * SHA-256 where it is known, the file's magic), synced and linked to NAME.gguf.
 *
 * The server is not believed: what it sends is held against what was asked for and what it said before, and bounded in
 * its headers, its errors' pages and its length. */
#ifndef TANDEM_FETCH_DOWNLOAD_H
#define TANDEM_FETCH_DOWNLOAD_H

#include "common/error.h"

#define DOWNLOAD_CONNECTIONS 4u

struct download {
        const char *url;
        int folder_fd;          /* where it goes */
        const char *folder;     /* the same, for messages */
        const char *name;       /* without .gguf */
        const char *token;      /* a bearer token for the url's host alone; NULL: none */
        const char *sha256;     /* 64 hexadecimal digits; NULL: the server's word, if it gives one */
        uint64_t size_bytes;    /* 0: the server's word */
        unsigned n_connections; /* at most 8; small files and servers without ranges get one; 0: DOWNLOAD_CONNECTIONS */
        unsigned n_tries;       /* how often in a row a transfer may fail without one byte; 0: 5 */
        unsigned first_wait_ms; /* before the second try; doubles with each; 0: 1000 */
        /* Called now and then. total 0: unknown. Returning false ends the download, which can be taken up later. */
        bool (*on_progress)(uint64_t done, uint64_t total, double bytes_per_second, void *userdata);
        void (*on_retry)(const char *why, unsigned wait_ms, void *userdata);
        void *userdata;
        int (*look)(int fd, const char *path, struct tdm_error *err); /* see part_finish(); NULL: none */
};

struct download_result {
        uint64_t size_bytes;
        uint64_t fetched_bytes; /* in this run */
        bool checked;           /* its SHA-256 was known, and is right */
};

/* 0, or a TDM_E_* with a message: TDM_E_CANCELLED, TDM_E_BUSY (another process downloads it), TDM_E_NO_MEMORY (no room
 * on the disk), TDM_E_DENIED, TDM_E_NO_MODEL (there is no such file), TDM_E_BAD_MODEL (not the right bytes),
 * TDM_E_PROTOCOL (the server or the network failed). */
int download_file(const struct download *download, struct download_result *ret, struct tdm_error *err);

/* A small text, at most max_bytes. *ret is the caller's. */
int download_text(const char *url, const char *token, size_t max_bytes, char **ret, struct tdm_error *err);

#endif

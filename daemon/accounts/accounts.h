/* Accounts: how much of what all users share each user holds, and who may have more of it.
 *
 * Every resource that clients share has a capacity. A user may hold only a share of what the others leave, so that
 * some is left for the next user, and root has a reserve of its own. With `own` what the user holds,
 * `others` what all others hold, and `room` = capacity - reserve (for root: the whole capacity), a user may take n
 * more when
 *
 *     own + n <= share_percent / 100 * (room - others)        (dynamic thresholds: Choudhury and Hahne, 1998)
 *  or own + n <= floor and own + others + n <= room
 *
 * With a share of one half, k users that take all they can hold 1 - 2^-k of the room together: three hold 7/8, and the
 * fourth still gets half of the rest. `floor` is the least that a user is to have while there is any room at all.
 *
 * A user is a login account: the uids of its subordinate ranges (subuid(5), as newuidmap(1) hands them out) count as
 * their owner's, or one user would be 65,536.
 *
 * A program that serves many people under one uid (the HTTP gateway) may give each a label. An identity is the pair of
 * a uid and a label, as one number: the uid in the lower 32 bits, above it the label's number, 0 for none. So the
 * identity of a client without a label is its uid, and root's is 0. A label's number is never used again for another
 * one; whatever compares identities therefore never takes one client for another, even after a label was forgotten.
 * Each labelled identity has an account of its own. Who may give labels is the faces' matter.
 *
 * Loop thread only. An account lives as long as somebody refers to it. */
#ifndef TDM_DAEMON_ACCOUNTS_ACCOUNTS_H
#define TDM_DAEMON_ACCOUNTS_ACCOUNTS_H

#include <sys/types.h>
#include "common/error.h"
#include "common/list.h"

enum tdm_resource {
        TDM_RESOURCE_CONNECTIONS,    /* of the socket face */
        TDM_RESOURCE_CALLERS,        /* on the bus that are remembered */
        TDM_RESOURCE_FRAME_BYTES,    /* of requests that have arrived in part, and of replies that nobody read yet */
        TDM_RESOURCE_WAITING_BYTES,  /* of texts that wait to be tokenized */
        TDM_RESOURCE_JOBS,           /* that wait or run */
        TDM_RESOURCE_CALLS,          /* on the bus that wait for polkit */
        TDM_RESOURCE_MODELS,         /* that are loaded or loading */
        TDM_RESOURCE_FILES,          /* fds of clients that are being received, or whose file system hangs */
        TDM_RESOURCE_LOADS,          /* reads of model files under way */
        TDM_RESOURCE_METADATA_BYTES, /* of described models: vocabulary, tensors' names */
        TDM_RESOURCE_GRAMMAR_BYTES,  /* of jobs' schemas and grammars, and of what is kept to follow them */
        TDM_N_RESOURCES
};

struct tdm_resource_limit {
        uint64_t capacity;
        uint64_t reserve;          /* for root alone; less than capacity */
        uint64_t floor;            /* what each user gets while there is room */
        unsigned share_percent;    /* 1 … 100, of what the others leave */
        unsigned labelled_percent; /* the same of identities with a label; 0: share_percent */
};

/* The uids [first, first + count) belong to the login account `owner`. */
struct tdm_uid_range {
        uid_t first, count, owner;
};

struct tdm_accounts;
struct tdm_label;

#define TDM_LABEL_MAX_BYTES 80u
#define TDM_MAX_LABELS_PER_USER 512u

struct tdm_account {
        struct tdm_list node; /* of all accounts */
        struct tdm_accounts *accounts;
        unsigned n_refs;
        uint64_t identity;       /* the login account's uid, or that of a label */
        uid_t uid;               /* the login account's, or the uid that the label is of */
        struct tdm_label *label; /* NULL: none */
        uint64_t used[TDM_N_RESOURCES];
        uint64_t n_refused[TDM_N_RESOURCES];
        /* turns.c: the time handled in a turn of the loop, those who wait, and the account's place among others */
        uint64_t turn, turn_ns;
        struct tdm_list waiters, turn_node;
};

/* limits [TDM_N_RESOURCES], copied. */
int tdm_accounts_new(struct tdm_accounts **ret, const struct tdm_resource_limit *limits);
/* All accounts must be released. */
void tdm_accounts_destroy(struct tdm_accounts *accounts);
void tdm_accounts_destroyp(struct tdm_accounts **accounts);

/* Replaces the subordinate ranges. ranges [n], copied; overlapping ones are ignored from the second on, and root owns
 * none. Accounts that are there keep their owner. */
int tdm_accounts_set_ranges(struct tdm_accounts *accounts, const struct tdm_uid_range *ranges, size_t n);
/* The login account that uid counts as. */
uid_t tdm_accounts_owner(const struct tdm_accounts *accounts, uid_t uid);

/* The account of uid's owner; a new reference. NULL: no memory. */
struct tdm_account *tdm_accounts_get(struct tdm_accounts *accounts, uid_t uid);
/* The account of what uid calls `label`; a new reference. A uid may have TDM_MAX_LABELS_PER_USER labels. A further one
 * takes the place of the one without an account that was not asked for longest; the cached pages of that one are never
 * found again. TDM_E_BAD_REQUEST: that is no label (1 to TDM_LABEL_MAX_BYTES printing ASCII characters, no space).
 * TDM_E_QUOTA: all are in use. */
int tdm_accounts_get_labelled(struct tdm_accounts *accounts, uid_t uid, const char *label, struct tdm_account **ret,
                              struct tdm_error *err);
const char *tdm_account_label(const struct tdm_account *account); /* "": none */
/* ", LABEL", to stand behind a uid in messages; "": none */
const char *tdm_account_label_suffix(const struct tdm_account *account);
struct tdm_account *tdm_account_ref(struct tdm_account *account);
/* The last reference may go only when nothing is charged any more. */
void tdm_account_unref(struct tdm_account *account);
void tdm_account_unrefp(struct tdm_account **account);

/* An account that is NULL is not counted: these do nothing then, and there is no end of what is available.
 *
 * Charges n. TDM_E_QUOTA: this user's share is used up. TDM_E_BUSY: everybody together has all of it. The message says
 * how much there is and what to do. Nothing is charged then. */
int tdm_account_charge(struct tdm_account *account, enum tdm_resource resource, uint64_t n, struct tdm_error *err);
/* The most of it that the account may hold while the others hold what they do. It may hold more: then it gets no more.
 */
uint64_t tdm_account_share(const struct tdm_account *account, enum tdm_resource resource);
/* How much more of it the account may be charged now. */
uint64_t tdm_account_available(const struct tdm_account *account, enum tdm_resource resource);
/* Gives back n of what was charged. */
void tdm_account_release(struct tdm_account *account, enum tdm_resource resource, uint64_t n);
/* n of what was charged to `from` is charged to `to`, who may hold more than its share then. */
void tdm_account_move(struct tdm_account *from, struct tdm_account *to, enum tdm_resource resource, uint64_t n);

uint64_t tdm_accounts_total(const struct tdm_accounts *accounts, enum tdm_resource resource);
/* The accounts, in no order: of struct tdm_account by node. */
struct tdm_list *tdm_accounts_list(struct tdm_accounts *accounts);
const char *tdm_resource_name(enum tdm_resource resource); /* as errors and status name it: "connections" */

#endif

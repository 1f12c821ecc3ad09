/* What can go wrong, and how it is told to a person.
 *
 * Functions return 0 (or a count) on success, a negative errno for the unexpected (pass it up), or a positive
 * TDM_E_* for an outcome that a caller must expect (handle it). A function that can fail for a reason a person
 * should read also takes a `struct tdm_error *` (may be NULL) and fills it: what was tried, on what, why it failed
 * and what to do. Outputs are written on success only. */
#ifndef TDM_COMMON_ERROR_H
#define TDM_COMMON_ERROR_H

#include <stdarg.h>
#include "common/util.h"

/* The names (tdm_error_name) are part of the wire protocol: they only ever grow. */
enum tdm_error_code {
        TDM_E_NONE = 0,
        TDM_E_INTERNAL,      /* "internal": a defect in Tandem, or an unexpected errno */
        TDM_E_NO_MODEL,      /* "no-model": no such model file or name */
        TDM_E_BAD_MODEL,     /* "bad-model": the file is damaged or lies about itself */
        TDM_E_UNSUPPORTED,   /* "unsupported": architecture, tensor type or feature not known */
        TDM_E_MODEL_CHANGED, /* "model-changed": cut short or rewritten while in use */
        TDM_E_BAD_REQUEST,   /* "bad-request": arguments out of range or contradictory */
        TDM_E_TOO_LONG,      /* "too-long": prompt does not fit the context */
        TDM_E_BUSY,          /* "busy": too many jobs or connections in all */
        TDM_E_QUOTA,         /* "quota": too many for this user */
        TDM_E_NO_MEMORY,     /* "no-memory": model or cache does not fit the budget */
        TDM_E_DENIED,        /* "denied": this user may not */
        TDM_E_NO_JOB,        /* "no-job": no such job */
        TDM_E_DRAINING,      /* "draining": the daemon is shutting down */
        TDM_E_CANCELLED,     /* "cancelled" */
        TDM_E_DEVICE_FAULT,  /* "device-fault": the device died on this job, twice, alone */
        TDM_E_DAEMON_LOST,   /* "daemon-lost": connection to tandemd gone */
        TDM_E_PROTOCOL,      /* "protocol": a peer broke the rules of the wire or the ring */
        TDM_E_NO_WORKER,     /* "no-worker": no worker can run the model now */
        TDM_E_DEADLINE,      /* "deadline": the client's time limit passed before it was done */
        TDM_E_MAX
};

#define TDM_ERROR_MESSAGE_MAX 768

struct tdm_error {
        int code; /* a TDM_E_*, or a negative errno */
        char message[TDM_ERROR_MESSAGE_MAX];
};

/* Fills err (if not NULL) and returns code, so that `return tdm_error_set(err, TDM_E_..., "...")` reads well. */
int tdm_error_set(struct tdm_error *err, int code, const char *fmt, ...) _printf_(3, 4);
/* Puts "text: " in front of err's message. Returns err->code. */
int tdm_error_prefix(struct tdm_error *err, const char *fmt, ...) _printf_(2, 3);

const char *tdm_error_name(int code);      /* never NULL; negative errno gives "internal" */
int tdm_error_from_name(const char *name); /* TDM_E_INTERNAL when unknown */

#endif

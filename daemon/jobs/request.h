/* What the faces (socket, D-Bus) read alike from a request beside its options: the names of roles. One place, so that
 * the same request is the same job whichever way it came. */
#ifndef TDM_DAEMON_JOBS_REQUEST_H
#define TDM_DAEMON_JOBS_REQUEST_H

#include "daemon/jobs/job.h"

/* enum tdm_chat_role; -EINVAL: none of system, user, assistant, tool. */
static inline int tdm_request_role(const char *name)
{
        static const char *const names[] = { [TDM_CHAT_SYSTEM] = "system",
                                             [TDM_CHAT_USER] = "user",
                                             [TDM_CHAT_ASSISTANT] = "assistant",
                                             [TDM_CHAT_TOOL] = "tool" };

        for (int i = 0; i < (int)TDM_ARRAY_SIZE(names); i++)
                if (strcmp(names[i], name) == 0)
                        return i;
        return -EINVAL;
}

#endif

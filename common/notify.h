/* Tells a service manager this process's state (sd_notify's protocol: a datagram to $NOTIFY_SOCKET). Does nothing
 * without such a manager. */
#ifndef TDM_COMMON_NOTIFY_H
#define TDM_COMMON_NOTIFY_H

/* "READY=1", "STOPPING=1", … A manager that does not answer is no reason to fail: errors are only logged. */
void tdm_notify(const char *state);

#endif

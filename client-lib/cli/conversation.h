/* What was said in a chat: messages in order, with the texts owned. The first may be a system message. */
#ifndef TANDEM_CLI_CONVERSATION_H
#define TANDEM_CLI_CONVERSATION_H

#include "client-lib/include/tandem.h"

struct conversation {
        struct tandem_message *messages;
        size_t n, capacity;
};

/* role is kept as it is: a constant. False: no memory, complained about. */
bool conversation_add(struct conversation *c, const char *role, const char *text, size_t size);
/* Removes all but the first `keep` messages. */
void conversation_cut(struct conversation *c, size_t keep);
void conversation_free(struct conversation *c);
bool conversation_has_system(const struct conversation *c);
/* Sets or replaces the system message; "" removes it. */
bool conversation_set_system(struct conversation *c, const char *text);
/* Removes the oldest turns, each a user's message and its answers, until a quarter of the text is gone. The system
 * message and the last turn stay. Returns the number of turns. */
size_t conversation_trim(struct conversation *c);

/* As a JSON file: {"messages": [{"role": …, "content": …}, …]}, readable for its owner alone. Both complain and return
 * false; a file that cannot be read leaves the conversation as it was. */
bool conversation_save(const struct conversation *c, const char *path);
bool conversation_load(struct conversation *c, const char *path);

#endif

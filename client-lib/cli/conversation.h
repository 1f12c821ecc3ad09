/* What was said in a chat: messages in order, with the texts owned. The first may be a system message. */
#ifndef TANDEM_CLI_CONVERSATION_H
#define TANDEM_CLI_CONVERSATION_H

#include "client-lib/cli/pictures.h"
#include "client-lib/include/tandem.h"

struct conversation {
        struct tandem_message *messages;
        const struct tandem_message_details **details; /* one for each message; NULL where it made no calls */
        struct cli_pictures *pictures;                 /* one list for each message */
        size_t n, capacity;
        size_t n_aside; /* messages that conversation_trim() set aside; they stand behind the n */
};

/* role is kept as it is: a constant. False: no memory, complained about. */
bool conversation_add(struct conversation *c, const char *role, const char *text, size_t size);
/* The assistant's, with those calls of tools whose arguments are whole: others no model takes. False: as above. */
bool conversation_add_calls(struct conversation *c, const char *text, size_t size, const struct tandem_call *calls,
                            size_t n_calls);
/* Whether the arguments are a JSON object, and not one that was cut off. */
bool call_is_whole(const struct tandem_call *call);
/* The messages from `at` on leave one conversation and stand at the end of the other. Nothing is set aside in either.
 * False: no memory, complained about, and nothing was moved. */
bool conversation_move(struct conversation *from, size_t at, struct conversation *to);
/* Where the last message of the user is; n: there is none. */
size_t conversation_last_question(const struct conversation *c);
/* The last message gets these pictures, and the list is empty. */
void conversation_take_pictures(struct conversation *c, struct cli_pictures *pictures);
/* All pictures as the library takes them: to be freed. *ret is NULL where there are none. False: no memory, complained
 * about. */
bool conversation_list_pictures(const struct conversation *c, struct tandem_picture **ret, size_t *ret_n);
/* Why one request cannot hold the pictures of all messages; NULL: it can. As pictures_lack_room(). */
const char *conversation_lacks_room(const struct conversation *c);
/* Removes all but the first `keep` messages. */
void conversation_cut(struct conversation *c, size_t keep);
void conversation_free(struct conversation *c);
bool conversation_has_system(const struct conversation *c);
/* Sets or replaces the system message; "" removes it. */
bool conversation_set_system(struct conversation *c, const char *text);
/* Sets the oldest turns aside, each a user's message and its answers, until a quarter of the text is gone. The system
 * message and the last turn stay. Returns the number of turns. Before anything else is done with the conversation,
 * either they are forgotten or they come back to their places. */
size_t conversation_trim(struct conversation *c);
void conversation_forget(struct conversation *c);
void conversation_take_back(struct conversation *c);

/* As a JSON file: {"messages": [{"role": …, "content": …}, …]}, readable for its owner alone, with calls of tools and
 * pictures as OpenAI's API has them ("tool_calls", "image_url" with the whole picture in it). A file that
 * is there is replaced in one piece if it is such a conversation, and else left alone. Both complain and return false;
 * a file that cannot be read leaves the conversation as it was. */
bool conversation_save(const struct conversation *c, const char *path);
bool conversation_load(struct conversation *c, const char *path);

#endif

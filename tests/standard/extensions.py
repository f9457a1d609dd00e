"""Extensions: the anonymous terminus 1.0, the sole connection 1.0, and the mapping of JMS."""

# ruff: noqa: E501 - a sentence is a line of the table

from __future__ import annotations

from tests.standard import MUST, MUST_NOT, SHOULD, kept, not_kept

ANONYMOUS = (
    kept(
        "2.1",
        MUST,
        "A container that has the anonymous terminus offers ANONYMOUS-RELAY.",
        "control_link: open_says_what_is_offered",
    ),
    kept("2.2", MUST, "A message is forwarded to the node that its to names.", "messaging: the_anonymous_relay"),
    kept(
        "2.2",
        MUST,
        "As if it had been sent on a link of its own, even where the relay ends before its address is known.",
        "relay: a_settled_message_outlives_its_link",
        "relay: a_settled_message_in_a_transaction_outlives_its_session",
    ),
    kept(
        "2.2",
        MUST,
        "A message that cannot be forwarded is rejected, where the source takes rejected, with the error that a link would "
        "have ended with.",
        "messaging: the_relay_to_nowhere",
    ),
    kept(
        "2.2",
        MUST,
        "The error's info then has the delivery-tag.",
        "relay: what_cannot_be_forwarded_is_named_by_its_tag",
    ),
    kept(
        "2.2",
        MUST,
        "Where the source does not take rejected, the link is detached with that error.",
        "relay: a_relay_whose_source_takes_no_rejected_is_detached",
        "relay: a_source_that_takes_no_rejected_in_a_transaction",
    ),
    kept(
        "2.2",
        MUST,
        "A settled message that cannot be forwarded ends the link, with its delivery-tag in the error's info.",
        "relay: a_settled_message_that_cannot_be_forwarded_ends_the_link",
    ),
    kept("2.2", MUST, "A message without to is refused.", "messaging: the_relay_to_nowhere"),
)

SOLE = (
    kept(
        "2",
        MUST,
        "A container that honours it offers sole-connection-for-container where it is desired.",
        "sole_connection: the_second_is_refused_and_the_first_goes_on",
    ),
    kept(
        "3",
        MUST,
        "With refuse-connection the second connection is refused, and the first goes on.",
        "sole_connection: the_second_is_refused_and_the_first_goes_on",
    ),
    kept(
        "3",
        MUST,
        "Its open then has the property amqp:connection-establishment-failed, and the close follows.",
        "sole_connection: the_second_is_refused_and_the_first_goes_on",
    ),
    kept(
        "3",
        MUST,
        "With close-existing the first is closed with amqp:resource-locked.",
        "sole_connection: the_first_is_closed_where_it_asked_for_that",
    ),
    kept(
        "3",
        MUST,
        "The policy of the connection that is there decides.",
        "sole_connection: the_policy_of_the_one_that_is_there_decides",
    ),
    kept("3", MUST, "A policy that there is not is refused.", "sole_connection: a_policy_that_there_is_not"),
    kept(
        "2",
        MUST,
        "A connection that does not ask for it opens beside any other.",
        "sole_connection: a_connection_that_does_not_ask_opens_beside_any_other",
    ),
    kept(
        "4",
        SHOULD,
        "A connection whose host is gone gives way.",
        "sole_connection: a_connection_whose_host_is_silent_gives_way",
    ),
)

JMS = (
    kept("filters", MUST, "apache.org:selector-filter:string is a JMS selector, and only what it selects is delivered.",
         "selectors: only_what_matches_is_delivered_and_the_rest_stays", "jms: selectors_choose_and_leave_the_rest"),
    kept("filters", MUST, "One that is no selector is refused.", "selectors: a_bad_one_is_refused_with_its_place", "jms: bad_selector_says_where"),
    kept("filters", MUST, "Of the filters of a source each has to match; those of AMQP's Filter Expressions, too.",
         "selectors: filters_of_amqp_select"),
    kept("filters", MUST, "apache.org:no-local-filter:list leaves out what the connection itself posts.",
         "selectors: no_local_leaves_out_what_its_own_connection_posts"),
    kept("destinations", MUST, "Capabilities queue, topic, temporary-queue and temporary-topic say what a terminus is.",
         "messaging: a_topic_by_its_capability", "jms: request_and_reply_over_a_temporary_queue", "jms: a_temporary_topic_has_many_listeners"),
    kept("destinations", MUST_NOT, "A temporary queue or topic is consumed by no other connection than the one that made it.",
         "messaging: a_dynamic_node_is_consumed_by_its_own_connection_alone",
         "permissions: a_connection_may_use_its_own_dynamic_address_and_no_other"),
    kept("subscriptions", MUST, "A durable subscription is a source with durable and expiry-policy never, named by its link; a null source finds it.",
         "subscriptions: a_lasting_subscription_outlives_its_link_until_it_is_closed",
         "subscriptions: a_null_source_finds_a_lasting_subscription_by_its_name"),
    kept("subscriptions", MUST, "Capabilities shared and global make a subscription one of many links, of its container or of all.",
         "subscriptions: shared_and_global_subscriptions", "subscriptions: a_null_source_finds_a_subscription_shared_by_all"),
    kept("subscriptions", MUST, "Closing the link of a durable subscription ends it.", "jms: a_durable_subscription_lasts_until_it_is_unsubscribed"),
    kept("subscriptions", MUST, "Ending a shared subscription that others use is refused with amqp:resource-locked.",
         "subscriptions: a_shared_subscription_does_not_end_while_others_use_it"),
    not_kept("subscriptions", MUST, "That holds wherever the others come in.",
             "A worker knows its own links: it ends a subscription that links at another worker or instance use."),
    not_kept("subscriptions", MUST, "Another selector, or no-local, of a durable subscription ends it and makes another one.",
             "It goes on, with what came under the one before."),
    kept("connections", MUST, "A client id has one connection.", "jms: a_client_id_has_one_connection"),
    kept("messages", MUST, "x-opt-jms-msg-type and the others go through unchanged, so that each kind of message comes back as it was sent.",
         "jms: every_kind_of_message_comes_back_equal"),
    kept("messages", MUST, "priority, ttl and x-opt-delivery-time are kept.", "jms: priorities_and_delivery_delay", "jms: expired_messages_are_not_delivered"),
    kept("acknowledgement", MUST, "Each acknowledge mode is the settlement that it is mapped to.", "jms: client_acknowledge_and_recover",
         "jms: automatic_and_lazy_acknowledgement"),
)  # fmt: skip

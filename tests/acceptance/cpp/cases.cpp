// Runs one case against a service: `acceptance CASE URL`. Prints one line of JSON with what the client saw and exits with
// 0; 1: the case failed or took too long; 2: no such case. The test that started it judges what was seen.
#include "client.hpp"
#include "seen.hpp"

#include <proton/annotation_key.hpp>
#include <proton/codec/encoder.hpp>
#include <proton/delivery_mode.hpp>
#include <proton/message_id.hpp>
#include <proton/ssl.hpp>
#include <proton/symbol.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace {

using proton::message;
using proton::receiver_options;
using proton::sender_options;
using proton::source_options;
using proton::target_options;
const proton::annotation_key NOTE{"x-opt-note"};
using Texts = std::vector<std::string>;

/// The service, and the addresses of one case.
struct Service {
    std::string url, name;

    std::string address(const std::string& of) const { return "cpp." + name + "." + of; }

    void send(const std::string& to, const Texts& texts) const {
        Client client(url, "cpp-" + name + "-sends");
        client.sender(address(to)).send_all(texts);
    }
    /// Everything left in a queue: a mark is sent behind it and all before the mark is taken.
    Texts take_all(const std::string& from) const { return take_all_of(address(from)); }
    Texts take_all_of(const std::string& from) const {
        Client client(url, "cpp-" + name + "-takes");
        client.sender(from).send_all({"end"});
        Receiver& receiver = client.receiver(from);
        Texts texts = receiver.accept_until("end");
        texts.pop_back();
        return texts;
    }
};

Texts texts(const std::vector<Came>& came) {
    Texts found;
    for (const Came& each : came) {
        found.push_back(each.text());
    }
    return found;
}

receiver_options from(source_options source) { return receiver_options().source(source); }

proton::source::filter_map selector(const std::string& text) {
    proton::value filter;
    proton::codec::encoder encoder(filter);
    encoder << proton::codec::start::described() << proton::symbol("apache.org:selector-filter:string") << text
            << proton::codec::finish();
    proton::source::filter_map filters;
    filters.put("selector", filter);
    return filters;
}

void send_and_receive(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Sender& sender = client.sender(service.address("q"));
    std::string body(1'000'000, 'x');
    message sent(body);
    sent.durable(true);
    sent.id(std::string("an id"));
    sent.subject("a subject");
    sent.properties().put("number", 7);
    sent.message_annotations().put(NOTE, "kept");
    seen.put("outcome", sender.send(sent));
    Receiver& receiver = client.receiver(service.address("q"));
    Came came = receiver.take();
    receiver.accept(came);
    seen.put("body", came.text() == body);
    seen.put("durable", came.message.durable());
    seen.put("id", proton::get<std::string>(came.message.id()));
    seen.put("subject", came.message.subject());
    seen.put("number", proton::get<int>(came.message.properties().get("number")));
    seen.put("note", proton::get<std::string>(came.message.message_annotations().get(NOTE)));
    receiver.close();
    seen.put("left", service.take_all("q"));
}

/// Five megabytes in frames of 8 KiB.
void large(const Service& service, Seen& seen) {
    Client client(service.url, "cpp", proton::connection_options().max_frame_size(8192));
    std::string body;
    for (int i = 0; i < 5'000'000; ++i) {
        body += static_cast<char>('a' + i % 23);
    }
    seen.put("outcome", client.sender(service.address("q")).send(message(body)));
    Receiver& receiver = client.receiver(service.address("q"));
    seen.put("equal", receiver.accepted_text() == body);
}

void outcomes(const Service& service, Seen& seen) {
    service.send("q", {"released", "modified", "rejected", "accepted"});
    Client client(service.url, "cpp");
    Receiver& receiver = client.receiver(service.address("q"));
    std::vector<std::pair<std::string, int>> came;
    std::map<std::string, int> times;
    for (int i = 0; i < 6; ++i) {
        Came each = receiver.take();
        std::string text = each.text();
        came.emplace_back(text, each.count());
        bool first = times[text]++ == 0;
        if (text == "released" && first) {
            receiver.release(each);
        } else if (text == "modified" && first) {
            receiver.modify(each);
        } else if (text == "rejected") {
            receiver.reject(each);
        } else {
            receiver.accept(each);
        }
    }
    receiver.close();
    seen.put("came", came).put("left", service.take_all("q"));
    Receiver& letters = client.receiver("%DLQ%" + service.address("q"));
    seen.put("dead_letter", letters.accepted_text());
}

/// Many sends are under way at once.
void many(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Sender& sender = client.sender(service.address("q"));
    seen.put("accepted", sender.send_at_once(100));
    Receiver& receiver = client.receiver(service.address("q"));
    receiver.credit(100);
    bool in_order = true;
    for (int i = 0; i < 100; ++i) {
        in_order = receiver.accepted_text() == std::to_string(i) && in_order;
    }
    seen.put("in_order", in_order);
}

void settled(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    auto once = proton::delivery_mode::AT_MOST_ONCE;
    Sender& sender = client.sender(service.address("q"), sender_options().delivery_mode(once));
    for (const char* text : {"m0", "m1", "m2"}) {
        sender.send(message(text), true);
    }
    Receiver& receiver = client.receiver(service.address("q"), receiver_options().delivery_mode(once));
    Texts received;
    for (int i = 0; i < 3; ++i) {
        received.push_back(receiver.take().text());
    }
    receiver.close();
    seen.put("received", received).put("left", service.take_all("q"));
}

void credit(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Receiver& receiver = client.receiver(service.address("q"));
    seen.put("empty", texts(receiver.drain(5))).put("credit_after_empty", receiver.credit_left());
    service.send("q", {"m0", "m1", "m2", "m3"});
    receiver.credit(2);
    seen.put("two", Texts{receiver.accepted_text(), receiver.accepted_text()});
    std::vector<Came> rest = receiver.drain(10);
    for (const Came& each : rest) {
        receiver.accept(each);
    }
    seen.put("drained", texts(rest)).put("credit_after", receiver.credit_left());
    service.send("q", {"later"});
    seen.put("later", receiver.accepted_text());
}

void dynamic(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Receiver& replies = client.receiver("", from(source_options().dynamic(true)));
    std::string address = replies.address();
    client.sender(address).send_all({"reply"});
    seen.put("received", replies.accepted_text());
    replies.close();
    try {
        client.sender(address);
        seen.put("after", "attached");
    } catch (const Refused& refused) {
        seen.put("after", refused.what());
    }
}

/// The anonymous relay: each message says where to.
void relay(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Sender& sender = client.sender("", sender_options().target(target_options().anonymous(true)));
    Texts outcomes;
    for (const char* to : {"a", "b", ""}) {
        message each(std::string("to ") + to);
        if (*to) {
            each.to(service.address(to));
        }
        outcomes.push_back(sender.send(each));
    }
    seen.put("outcomes", outcomes).put("a", service.take_all("a")).put("b", service.take_all("b"));
}

void browse(const Service& service, Seen& seen) {
    service.send("q", {"m0", "m1", "m2"});
    Client client(service.url, "cpp");
    Receiver& browser = client.receiver(service.address("q"), from(source_options().distribution_mode(proton::source::COPY)));
    seen.put("browsed", texts(browser.drain(10)));
    browser.close();
    seen.put("left", service.take_all("q"));
}

void selectors(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Sender& sender = client.sender(service.address("q"));
    for (int i = 0; i < 6; ++i) {
        message each("m" + std::to_string(i));
        each.properties().put("n", i);
        sender.send(each);
    }
    Receiver& chosen = client.receiver(service.address("q"), from(source_options().filters(selector("n > 1 AND n <> 4"))));
    seen.put("chosen", Texts{chosen.accepted_text(), chosen.accepted_text(), chosen.accepted_text()});
    chosen.close();
    seen.put("left", service.take_all("q"));
    try {
        client.receiver(service.address("q"), from(source_options().filters(selector("n >"))));
        seen.put("bad", "attached");
    } catch (const Refused& refused) {
        seen.put("bad", refused.what());
    }
}

/// A lasting subscription gets what came while its connection was away; closed, it is gone.
void subscription(const Service& service, Seen& seen) {
    auto topic = target_options().capabilities({"topic"});
    Client shop(service.url, "cpp-shop");
    Sender& sender = shop.sender(service.address("t"), sender_options().target(topic));
    auto lasting = from(source_options()
                            .capabilities({"topic"})
                            .durability_mode(proton::source::UNSETTLED_STATE)
                            .expiry_policy(proton::source::NEVER))
                       .name("prices");
    for (const char* round : {"first", "away", "closed"}) {
        if (std::string(round) != "first") {
            sender.send_all({round});
        }
        Client reader(service.url, "cpp-reader");
        Receiver& receiver = reader.receiver(service.address("t"), lasting);
        if (std::string(round) == "first") {
            seen.put("expiry_policy", receiver.expiry_policy());
            sender.send_all({round});
        }
        if (std::string(round) == "closed") {
            sender.send_all({"end"});
        }
        seen.put(round, receiver.accept_until(std::string(round) == "closed" ? "end" : round));
        if (std::string(round) == "away") {
            receiver.close();
        }
        reader.close();
    }
}

/// Two links of one subscription share what comes.
void shared(const Service& service, Seen& seen) {
    Client client(service.url, "cpp-shared"), other(service.url, "cpp-other");
    auto options = [](const char* name) {
        return from(source_options()
                        .capabilities({"topic", "shared", "global"})
                        .expiry_policy(proton::source::NEVER))
            .name(name);
    };
    Receiver& first = client.receiver(service.address("t"), options("prices|1"));
    Receiver& second = other.receiver(service.address("t"), options("prices|2"));
    Receiver& alone = other.receiver(service.address("t"), from(source_options().capabilities({"topic"})));
    client.sender(service.address("t"), sender_options().target(target_options().capabilities({"topic"})))
        .send_all({"m0", "m1"});
    seen.put("alone", Texts{alone.accepted_text(), alone.accepted_text()});
    Texts both{first.accepted_text(), second.accepted_text()};
    std::sort(both.begin(), both.end());
    seen.put("shared", both);
    first.close();
    second.close();
}

/// Each group of a queue has every message, its members share them.
void groups(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Receiver& billing = client.receiver(service.address("q::billing"));
    Receiver& shipping = client.receiver(service.address("q::shipping"));
    service.send("q", {"m0", "m1"});
    seen.put("billing", Texts{billing.accepted_text(), billing.accepted_text()});
    seen.put("shipping", Texts{shipping.accepted_text(), shipping.accepted_text()});
    seen.put("default", service.take_all("q"));
}

void expiration(const Service& service, Seen& seen) {
    Client client(service.url, "cpp");
    Sender& sender = client.sender(service.address("q"));
    message brief("brief"), lasting("lasting");
    brief.ttl(proton::duration(1));
    lasting.ttl(proton::duration(3'600'000));
    sender.send(brief);
    sender.send(lasting);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    seen.put("left", service.take_all("q"));
}

/// A user as the environment says, with the one mechanism that it allows.
proton::connection_options user() {
    proton::connection_options options;
    options.user(std::getenv("LOGIN_USER")).password(std::getenv("LOGIN_PASSWORD"));
    return options.sasl_enabled(true).sasl_allow_insecure_mechs(true).sasl_allowed_mechs(std::getenv("LOGIN_MECHANISM"));
}

void login(const Service& service, Seen& seen) {
    proton::connection_options options = user();
    const char* authority = std::getenv("LOGIN_CA");
    const char* certificate = std::getenv("LOGIN_CERTIFICATE");
    const auto names = proton::ssl::VERIFY_PEER_NAME;
    if (certificate) {
        const proton::ssl_certificate shown{certificate, std::getenv("LOGIN_KEY")};
        options.ssl_client_options(proton::ssl_client_options(shown, authority, names));
    } else if (authority) {
        options.ssl_client_options(proton::ssl_client_options(authority, names));
    }
    try {
        Client(service.url, "cpp-login", options).close();
        seen.put("in", true);
    } catch (const std::runtime_error& error) {
        seen.put("refused", std::string(error.what()));
    }
}

/// What a user gets at an address that is not its own, and at its own: links, and posts on the relay, one of them settled.
void permissions(const Service& service, Seen& seen) {
    const std::string others = std::getenv("LOGIN_ADDRESS"), own = std::getenv("LOGIN_OWN");
    Client client(service.url, "cpp-user", user());
    auto refusal = [](auto attach) {
        try {
            attach();
        } catch (const Refused& refused) {
            return std::string(refused.what());
        }
        return std::string("attached");
    };
    seen.put("send", refusal([&] { client.sender(others); }));
    seen.put("receive", refusal([&] { client.receiver(others); }));
    auto anonymous = sender_options().target(target_options().anonymous(true));
    Sender& relay = client.sender("", anonymous);
    Sender& unanswered = client.sender("", anonymous.delivery_mode(proton::delivery_mode::AT_MOST_ONCE));
    message posted("permitted");
    posted.to(others);
    seen.put("post", relay.send(posted));
    posted.to(own);
    seen.put("permitted", relay.send(posted));
    seen.put("own", client.receiver(own).accepted_text());
    posted.to(others);
    unanswered.send(posted, true);
    seen.put("settled", unanswered.ended());
}

const std::map<std::string, void (*)(const Service&, Seen&)> CASES{
    {"send-and-receive", send_and_receive},
    {"large", large},
    {"outcomes", outcomes},
    {"many", many},
    {"settled", settled},
    {"credit", credit},
    {"dynamic", dynamic},
    {"relay", relay},
    {"browse", browse},
    {"selectors", selectors},
    {"subscription", subscription},
    {"shared", shared},
    {"groups", groups},
    {"expiration", expiration},
    {"login", login},
    {"permissions", permissions},
};

}  // namespace

int main(int count, char** arguments) {
    auto found = count == 3 ? CASES.find(arguments[1]) : CASES.end();
    if (found == CASES.end()) {
        std::cerr << "usage: acceptance CASE URL\n";
        return 2;
    }
    Seen seen;
    try {
        found->second(Service{arguments[2], arguments[1]}, seen);
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    std::cout << seen.line() << std::endl;
    return 0;
}

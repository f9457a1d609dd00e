// Qpid Proton's C++ client, whose events come on a thread of its own, used step by step: each call here waits for what it
// is for. Proton's objects are touched on Proton's thread alone.
#pragma once

#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/sender_options.hpp>
#include <proton/source.hpp>
#include <proton/source_options.hpp>
#include <proton/target.hpp>
#include <proton/target_options.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

constexpr std::chrono::seconds PATIENCE{120};

/// What Proton's thread changes and the case waits for.
class Watched {
  public:
    template <class Change>
    void change(Change change) {
        std::lock_guard<std::mutex> held(mutex_);
        change();
        news_.notify_all();
    }
    template <class Ready>
    void wait(const std::string& what, Ready ready) {
        std::unique_lock<std::mutex> held(mutex_);
        if (!news_.wait_for(held, PATIENCE, [&] { return !failed_.empty() || ready(); })) {
            throw std::runtime_error("nothing came: " + what);
        }
        if (!failed_.empty() && !ready()) {
            throw std::runtime_error(what + ": " + failed_);
        }
    }
    void fail(const std::string& why) {
        change([&] { failed_ = why; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable news_;
    std::string failed_;
};

/// One connection, and the thread that Proton has for it.
class Connection : public proton::messaging_handler {
  public:
    Connection(const std::string& url, const std::string& container_id, proton::connection_options options)
        : container_(*this, container_id) {
        container_.connect(url, options.container_id(container_id));
        thread_ = std::thread([this] {
            try {
                container_.run();
            } catch (const std::exception& error) {
                state_.fail(error.what());
            }
        });
        try {
            state_.wait("the open", [this] { return open_; });
        } catch (...) {  // it was refused: Proton's thread ends by itself
            thread_.join();
            throw;
        }
    }

    /// Closes without detaching a link, and waits for the end.
    void close() {
        if (thread_.joinable()) {
            connection_.work_queue().add([this] { connection_.close(); });
            thread_.join();
        }
    }

    /// Runs `work` on Proton's thread; its result, or what it threw.
    template <class Work>
    auto run(Work work) -> decltype(work(std::declval<proton::connection&>())) {
        using Result = decltype(work(connection_));
        auto task = std::make_shared<std::packaged_task<Result()>>([this, work] { return work(connection_); });
        std::future<Result> result = task->get_future();
        connection_.work_queue().add([task] { (*task)(); });
        if (result.wait_for(PATIENCE) != std::future_status::ready) {
            throw std::runtime_error("Proton's thread stands still");
        }
        return result.get();
    }

  private:
    void on_connection_open(proton::connection& connection) override {
        state_.change([&] {
            connection_ = connection;
            open_ = true;
        });
    }
    void on_error(const proton::error_condition& error) override { state_.fail(error.what()); }

    proton::container container_;
    proton::connection connection_;
    std::thread thread_;
    Watched state_;
    bool open_ = false;
};

/// The name of the error a link was refused with.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A link to post on.
class Sender : public proton::messaging_handler {
  public:
    explicit Sender(Connection& connection) : connection_(connection) {}

    void attach(const std::string& address, proton::sender_options options) {
        connection_.run([=](proton::connection& connection) {
            sender_ = connection.open_sender(address, proton::sender_options(options).handler(*this));
        });
        state_.wait("the answer to an attach", [this] { return open_ || closed_; });
        state_.wait("credit", [this] { return credit_ || closed_; });
        if (closed_) {
            throw Refused(error_);
        }
    }

    std::string address() {
        return connection_.run([this](proton::connection&) { return sender_.target().address(); });
    }

    /// Sends and waits: `accepted`, `rejected`, `released`, `modified`; settled at once: nothing is waited for.
    std::string send(const proton::message& message, bool settled = false) {
        std::size_t number = sends_++;
        connection_.run([&](proton::connection&) { sender_.send(message); });
        if (settled) {
            return "settled";
        }
        state_.wait("an outcome", [&] { return outcomes_.size() > number; });
        return outcomes_[number];
    }
    void send_all(const std::vector<std::string>& texts) {
        for (const std::string& text : texts) {
            if (send(proton::message(text)) != "accepted") {
                throw std::runtime_error(text + " was not accepted");
            }
        }
    }
    /// Sends without waiting between; how many were accepted.
    int send_at_once(int count) {
        connection_.run([&](proton::connection&) {
            for (int i = 0; i < count; ++i) {
                sender_.send(proton::message(std::to_string(i)));
            }
        });
        sends_ += count;
        state_.wait("all outcomes", [this] { return outcomes_.size() == sends_; });
        int accepted = 0;
        for (const std::string& outcome : outcomes_) {
            accepted += outcome == "accepted";
        }
        return accepted;
    }

    void close() {
        connection_.run([this](proton::connection&) { sender_.close(); });
        state_.wait("the answer to a detach", [this] { return closed_; });
    }
    /// The name of the error with which the service ends the link.
    std::string ended() {
        state_.wait("the end of the link", [this] { return closed_; });
        return error_;
    }

  private:
    void on_sender_open(proton::sender&) override {
        state_.change([this] { open_ = true; });
    }
    void on_sendable(proton::sender&) override {
        state_.change([this] { credit_ = true; });
    }
    void on_tracker_settle(proton::tracker& tracker) override {
        std::string outcome = proton::to_string(tracker.state());
        state_.change([&] { outcomes_.push_back(outcome); });
    }
    void on_sender_error(proton::sender& sender) override {
        std::string name = sender.error().name();
        state_.change([&] { error_ = name; });
    }
    void on_sender_close(proton::sender&) override {
        state_.change([this] { closed_ = true; });
    }

    Connection& connection_;
    proton::sender sender_;
    Watched state_;
    bool open_ = false, credit_ = false, closed_ = false;
    std::string error_;
    std::size_t sends_ = 0;
    std::vector<std::string> outcomes_;
};

/// A message that came; `id` names its delivery to the receiver.
struct Came {
    int id;
    proton::message message;

    std::string text() const { return proton::get<std::string>(message.body()); }
    int count() const { return static_cast<int>(message.delivery_count()); }
};

/// A link to consume from. Credit is given by hand, outcomes too.
class Receiver : public proton::messaging_handler {
  public:
    explicit Receiver(Connection& connection) : connection_(connection) {}

    void attach(const std::string& address, proton::receiver_options options) {
        connection_.run([=](proton::connection& connection) {
            receiver_ = connection.open_receiver(
                address, proton::receiver_options(options).handler(*this).credit_window(0).auto_accept(false));
        });
        state_.wait("the answer to an attach", [this] { return open_ || closed_; });
        if (closed_) {
            throw Refused(error_);
        }
    }

    std::string address() {
        return connection_.run([this](proton::connection&) { return receiver_.source().address(); });
    }
    std::string expiry_policy() {
        using source = proton::source;
        auto policy = connection_.run([this](proton::connection&) { return receiver_.source().expiry_policy(); });
        return policy == source::NEVER ? "never" : policy == source::LINK_CLOSE ? "link-detach" : "other";
    }

    void credit(int more) {
        connection_.run([=](proton::connection&) { receiver_.add_credit(more); });
        credit_ += more;
    }
    int credit_left() {
        return connection_.run([this](proton::connection&) { return receiver_.credit(); });
    }

    Came take() {
        if (credit_ == 0) {
            credit(1);
        }
        state_.wait("a message", [this] { return !came_.empty(); });
        return next();
    }
    /// All that is there for this much credit; the rest of it is given back.
    std::vector<Came> drain(int most) {
        credit(most);
        drained_ = false;
        connection_.run([this](proton::connection&) { receiver_.drain(); });
        state_.wait("the end of a drain", [this] { return drained_; });
        std::vector<Came> found;
        while (!came_.empty()) {
            found.push_back(next());
        }
        credit_ = 0;
        return found;
    }

    void accept(const Came& came) {
        settle(came, [](proton::delivery& delivery) { delivery.accept(); });
    }
    void reject(const Came& came) {
        settle(came, [](proton::delivery& delivery) { delivery.reject(); });
    }
    void release(const Came& came) {
        settle(came, [](proton::delivery& delivery) { delivery.release(); });
    }
    void modify(const Came& came) {
        settle(came, [](proton::delivery& delivery) { delivery.modify(); });
    }
    std::string accepted_text() {
        Came came = take();
        accept(came);
        return came.text();
    }
    std::vector<std::string> accept_until(const std::string& last) {
        std::vector<std::string> texts;
        do {
            texts.push_back(accepted_text());
        } while (texts.back() != last);
        return texts;
    }

    void close() {
        connection_.run([this](proton::connection&) { receiver_.close(); });
        state_.wait("the answer to a detach", [this] { return closed_; });
    }

  private:
    void settle(const Came& came, const std::function<void(proton::delivery&)>& outcome) {
        connection_.run([&](proton::connection&) {
            outcome(deliveries_.at(came.id));
            deliveries_.erase(came.id);
        });
    }
    Came next() {
        Came first;
        state_.change([&] {
            first = came_.front();
            came_.pop_front();
        });
        --credit_;
        return first;
    }
    void on_receiver_open(proton::receiver& receiver) override {
        // a link that is refused is answered without a source, and then detached
        bool granted = !receiver.source().address().empty();
        state_.change([&] { open_ = granted; });
    }
    void on_message(proton::delivery& delivery, proton::message& message) override {
        deliveries_.emplace(++last_, delivery);
        state_.change([&] { came_.push_back(Came{last_, message}); });
    }
    void on_receiver_drain_finish(proton::receiver&) override {
        state_.change([this] { drained_ = true; });
    }
    void on_receiver_error(proton::receiver& receiver) override {
        std::string name = receiver.error().name();
        state_.change([&] { error_ = name; });
    }
    void on_receiver_close(proton::receiver&) override {
        state_.change([this] { closed_ = true; });
    }

    Connection& connection_;
    proton::receiver receiver_;
    Watched state_;
    bool open_ = false, closed_ = false, drained_ = false;
    std::string error_;
    int credit_ = 0, last_ = 0;
    std::deque<Came> came_;
    std::map<int, proton::delivery> deliveries_;  // on Proton's thread only
};

/// A connection with its links.
class Client : public Connection {
  public:
    Client(const std::string& url, const std::string& container_id, proton::connection_options options = {})
        : Connection(url, container_id, options) {}
    ~Client() { close(); }

    Sender& sender(const std::string& address, proton::sender_options options = {}) {
        senders_.push_back(std::make_unique<Sender>(*this));
        senders_.back()->attach(address, options);
        return *senders_.back();
    }
    Receiver& receiver(const std::string& address, proton::receiver_options options = {}) {
        receivers_.push_back(std::make_unique<Receiver>(*this));
        receivers_.back()->attach(address, options);
        return *receivers_.back();
    }

  private:
    // Proton calls them until its thread has ended.
    std::vector<std::unique_ptr<Sender>> senders_;
    std::vector<std::unique_ptr<Receiver>> receivers_;
};

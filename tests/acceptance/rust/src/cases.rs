//! What each case does. Every case has addresses of its own.

use std::error::Error;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::{scram::{SaslScramSha256, SaslScramSha512}, SaslProfile};
use fe2o3_amqp::link::receiver::{CreditMode, ResumingReceiver};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::transaction::{
    Controller, OwnedTransaction, Transaction, TransactionAcquisition, TransactionDischarge, TransactionPosting,
    TransactionRetirement,
};
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    DistributionMode, Header, Message, Modified, Outcome, Properties, Source, Target, TerminusExpiryPolicy,
};
use fe2o3_amqp::types::primitives::{Array, OrderedMap, Symbol, Value as Amqp};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use serde_json::{json, Value};

type Failure = Box<dyn Error + Send + Sync>;

/// What `case` saw; none where there is no such case.
pub async fn run(case: &str, url: &str) -> Result<Option<Value>, Failure> {
    match case {
        "login" => return Ok(Some(login(url).await?)),
        "permissions" => return Ok(Some(permissions(url).await?)),
        _ => (),
    }
    let mut client = Client::open(case, url).await?;
    let seen = match case {
        "send-and-receive" => send_and_receive(&mut client).await?,
        "outcomes" => outcomes(&mut client).await?,
        "commit-and-rollback" => commit_and_rollback(&mut client).await?,
        "retire" => retire(&mut client).await?,
        "acquire" => acquire(&mut client).await?,
        "transfer" => transfer(&mut client).await?,
        "dropped" => dropped(&mut client).await?,
        "settled" => settled(&mut client).await?,
        "browse" => browse(&mut client).await?,
        "dynamic" => dynamic(&mut client).await?,
        "relay" => relay(&mut client).await?,
        "groups" => groups(&mut client).await?,
        "expiration" => expiration(&mut client).await?,
        "dead-letters" => dead_letters(&mut client).await?,
        "subscription" => subscription(&mut client, url).await?,
        "resume" => resume(&mut client).await?,
        "recover" => recover(&mut client).await?,
        "producer" => producer(&mut client, url).await?,
        _ => return Ok(None),
    };
    client.close().await?;
    Ok(Some(seen))
}

/// As the environment says.
fn profile() -> Result<SaslProfile, Failure> {
    let (user, password) = (std::env::var("LOGIN_USER")?, std::env::var("LOGIN_PASSWORD")?);
    Ok(match std::env::var("LOGIN_MECHANISM")?.as_str() {
        "PLAIN" => SaslProfile::Plain { username: user, password },
        "SCRAM-SHA-256" => SaslScramSha256::new(user, password).into(),
        "SCRAM-SHA-512" => SaslScramSha512::new(user, password).into(),
        "ANONYMOUS" => SaslProfile::Anonymous,
        "EXTERNAL" => SaslProfile::External,
        other => return Err(format!("no such mechanism: {other}").into()),
    })
}

/// Logs in as the environment says.
async fn login(url: &str) -> Result<Value, Failure> {
    let builder = Connection::builder().container_id("fe2o3-login").sasl_profile(profile()?);
    let opened = match std::env::var("LOGIN_CA") {
        // its default sends the header of TLS (part 5, section 5.2) on the port of TLS, too
        Ok(authority) => builder.tls_connector(tls(&authority)?).alt_tls_establishment(true).open(url).await,
        Err(_) => builder.open(url).await,
    };
    match opened {
        Ok(mut connection) => {
            connection.close().await?;
            Ok(json!({"in": true}))
        }
        Err(refused) => Ok(json!({"refused": format!("{refused:?}")})),
    }
}

/// What a user gets at an address that is not its own, and at its own: links, and posts in transactions.
async fn permissions(url: &str) -> Result<Value, Failure> {
    let (others, own) = (std::env::var("LOGIN_ADDRESS")?, std::env::var("LOGIN_OWN")?);
    let mut connection = Connection::builder().container_id("fe2o3-user").sasl_profile(profile()?).open(url).await?;
    let session = Session::begin(&mut connection).await?;
    let mut client = Client { case: "permissions".to_owned(), links: 0, connection, session };
    // on sessions of their own: the client may detach a link that was refused twice, which ends the session
    let mut sends = Session::begin(&mut client.connection).await?;
    let send = Sender::attach(&mut sends, "send", others.clone()).await.err();
    let mut receives = Session::begin(&mut client.connection).await?;
    let receive = Receiver::attach(&mut receives, "receive", others.clone()).await.err();
    let controller = client.controller().await?;
    let link = client.link();
    let target = Target::builder().build();
    let mut relay = Sender::builder().name(link).target(target).attach(&mut client.session).await?;
    let addressed = |to: &str| {
        Message::builder().properties(Properties::builder().to(to.to_owned()).build()).value("permitted".to_string()).build()
    };
    let transaction = Transaction::declare(&controller, None).await?;
    let post = transaction.post(&mut relay, addressed(&others)).await?;
    let commit = transaction.commit().await.err();
    // one that is refused rolls back once more in its destructor, and the next declaration may get the answer to that
    let controller = client.controller().await?;
    let transaction = Transaction::declare(&controller, None).await?;
    accepted(transaction.post(&mut relay, addressed(&own)).await?)?;
    transaction.commit().await?;
    let link = client.link();
    let mut receiver = Receiver::attach(&mut client.session, link, own).await?;
    let came = take(&mut receiver, 1).await?;
    client.close().await?;
    Ok(json!({
        "send": format!("{send:?}"),
        "receive": format!("{receive:?}"),
        "post": format!("{post:?}"),
        "commit": format!("{commit:?}"),
        "own": came,
    }))
}

/// Trusts one authority alone, and shows the certificate that the environment names.
fn tls(authority: &str) -> Result<tokio_native_tls::TlsConnector, Failure> {
    let mut builder = native_tls::TlsConnector::builder();
    builder.disable_built_in_roots(true);
    builder.add_root_certificate(native_tls::Certificate::from_pem(&std::fs::read(authority)?)?);
    if let Ok(certificate) = std::env::var("LOGIN_CERTIFICATE") {
        let (certificate, key) = (std::fs::read(certificate)?, std::fs::read(std::env::var("LOGIN_KEY")?)?);
        builder.identity(native_tls::Identity::from_pkcs8(&certificate, &key)?);
    }
    Ok(builder.build()?.into())
}

/// A connection with one session, and the addresses of one case.
struct Client {
    case: String,
    links: u32,
    connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
}

impl Client {
    async fn open(case: &str, url: &str) -> Result<Self, Failure> {
        let mut connection = Connection::open(format!("fe2o3-{case}"), url).await?;
        let session = Session::begin(&mut connection).await?;
        Ok(Self { case: case.to_owned(), links: 0, connection, session })
    }

    async fn close(mut self) -> Result<(), Failure> {
        self.session.end().await?;
        self.connection.close().await?;
        Ok(())
    }

    fn address(&self, name: &str) -> String {
        format!("fe2o3.{}.{name}", self.case)
    }

    /// Links of one connection have names of their own.
    fn link(&mut self) -> String {
        self.links += 1;
        format!("link-{}", self.links)
    }

    async fn sender(&mut self, name: &str) -> Result<Sender, Failure> {
        let (link, address) = (self.link(), self.address(name));
        Ok(Sender::attach(&mut self.session, link, address).await?)
    }

    async fn receiver(&mut self, name: &str) -> Result<Receiver, Failure> {
        let (link, address) = (self.link(), self.address(name));
        Ok(Receiver::attach(&mut self.session, link, address).await?)
    }

    async fn controller(&mut self) -> Result<Controller, Failure> {
        let link = self.link();
        Ok(Controller::attach(&mut self.session, link).await?)
    }

    /// Sends texts outside any transaction.
    async fn send(&mut self, name: &str, texts: &[&str]) -> Result<(), Failure> {
        let mut sender = self.sender(name).await?;
        for text in texts {
            accepted(sender.send(text.to_string()).await?)?;
        }
        sender.close().await?;
        Ok(())
    }

    /// Everything left in a queue: a mark is sent behind it and all before the mark is taken.
    async fn take_all(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        self.send(name, &["end"]).await?;
        let mut receiver = self.receiver(name).await?;
        let mut texts = take_until(&mut receiver, "end").await?;
        receiver.close().await?;
        texts.pop();
        Ok(texts)
    }
}

fn accepted(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Accepted(_) => Ok(()),
        other => Err(format!("expected accepted, got {other:?}").into()),
    }
}

/// Accepts up to and with the text `last`.
async fn take_until(receiver: &mut Receiver, last: &str) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|text| text != last) {
        let delivery = receiver.recv::<String>().await?;
        receiver.accept(&delivery).await?;
        texts.push(delivery.into_body());
    }
    Ok(texts)
}

/// The text of a delivery and how often it came before.
fn counted(delivery: &fe2o3_amqp::link::delivery::Delivery<String>) -> Value {
    let count = delivery.message().header.as_ref().map_or(0, |header| header.delivery_count);
    json!([delivery.body(), count])
}

async fn send_and_receive(client: &mut Client) -> Result<Value, Failure> {
    let large = "x".repeat(1_000_000);
    client.send("q", &["m0", "m1", &large]).await?;
    let mut receiver = client.receiver("q").await?;
    let texts = take_until(&mut receiver, &large).await?;
    receiver.close().await?;
    Ok(json!({"received": texts[..2], "large": texts[2].len(), "left": client.take_all("q").await?}))
}

async fn outcomes(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["released", "modified", "rejected"]).await?;
    let mut receiver = client.receiver("q").await?;
    let first = receiver.recv::<String>().await?;
    receiver.release(&first).await?;
    let again = receiver.recv::<String>().await?; // it may come after what was on its way already
    let mut seen = vec![counted(&first)];
    let mut delivery = again;
    let mut rounds = 0;
    while seen.len() < 5 {
        rounds += 1;
        if rounds > 10 {
            return Err(format!("unexpected deliveries: {seen:?}").into());
        }
        seen.push(counted(&delivery));
        match delivery.body().as_str() {
            "modified" if seen.iter().filter(|each| each[0] == "modified").count() == 1 => {
                let modified = Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
                receiver.modify(&delivery, modified).await?;
            }
            "rejected" => receiver.reject(&delivery, None).await?,
            _ => receiver.accept(&delivery).await?,
        }
        if seen.len() < 5 {
            delivery = receiver.recv::<String>().await?;
        }
    }
    receiver.close().await?;
    Ok(json!({"seen": seen, "left": client.take_all("q").await?}))
}

async fn commit_and_rollback(client: &mut Client) -> Result<Value, Failure> {
    let controller = client.controller().await?;
    let mut sender = client.sender("q").await?;
    let mut receiver = client.receiver("q").await?;

    let committed = Transaction::declare(&controller, None).await?;
    let rolled_back = Transaction::declare(&controller, None).await?;
    for i in 0..3 {
        accepted(committed.post(&mut sender, format!("committed{i}")).await?)?;
        accepted(rolled_back.post(&mut sender, format!("rolled back{i}")).await?)?;
    }
    client.send("q", &["before the commit"]).await?;
    let before = take_until(&mut receiver, "before the commit").await?;
    rolled_back.rollback().await?;
    committed.commit().await?;
    client.send("q", &["end"]).await?;
    let after = take_until(&mut receiver, "end").await?;
    sender.close().await?;
    receiver.close().await?;
    controller.close().await?;
    Ok(json!({"before": before, "after": after}))
}

async fn retire(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["m0", "m1", "m2"]).await?;
    let controller = client.controller().await?;
    let mut receiver = client.receiver("q").await?;
    let mut seen = Vec::new();
    for commit in [false, true] {
        let transaction = Transaction::declare(&controller, None).await?;
        let mut deliveries = Vec::new();
        for _ in 0..3 {
            deliveries.push(receiver.recv::<String>().await?);
        }
        seen.push(deliveries.iter().map(counted).collect::<Vec<_>>());
        transaction.accept(&mut receiver, &deliveries[0]).await?;
        transaction.accept(&mut receiver, &deliveries[1]).await?;
        transaction.release(&mut receiver, &deliveries[2]).await?;
        if commit {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
    }
    receiver.close().await?;
    controller.close().await?;
    Ok(json!({"seen": seen, "left": client.take_all("q").await?}))
}

/// Two messages are acquired in a transaction, and one of them is accepted: rolled back, then committed.
async fn acquire(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["m0", "m1", "m2"]).await?;
    let controller = client.controller().await?;
    let (link, address) = (client.link(), client.address("q"));
    let builder = Receiver::builder().name(link).source(address).credit_mode(CreditMode::Manual);
    let mut receiver = builder.attach(&mut client.session).await?;
    let mut seen = Vec::new();
    for commit in [false, true] {
        let transaction = Transaction::declare(&controller, None).await?;
        let mut acquisition = transaction.acquire(&mut receiver, 2).await?;
        let first = acquisition.recv::<String>().await?;
        let second = acquisition.recv::<String>().await?;
        seen.push(vec![counted(&first), counted(&second)]);
        acquisition.accept(&first).await?;
        if commit {
            acquisition.commit().await?;
            receiver.release(&second).await?;
        } else {
            acquisition.rollback().await?;
        }
    }
    receiver.close().await?;
    controller.close().await?;
    Ok(json!({"seen": seen, "left": client.take_all("q").await?}))
}

async fn transfer(client: &mut Client) -> Result<Value, Failure> {
    client.send("from", &["m0", "m1"]).await?;
    let mut receiver = client.receiver("from").await?;
    let mut sender = client.sender("to").await?;
    for _ in 0..2 {
        // each with a control link of its own
        let link = client.link();
        let transaction = OwnedTransaction::declare(&mut client.session, link, None).await?;
        let delivery = receiver.recv::<String>().await?;
        accepted(transaction.post(&mut sender, format!("moved {}", delivery.body())).await?)?;
        transaction.accept(&mut receiver, &delivery).await?;
        transaction.commit().await?;
    }
    receiver.close().await?;
    sender.close().await?;
    Ok(json!({"from": client.take_all("from").await?, "to": client.take_all("to").await?}))
}

/// A transaction that goes out of scope is rolled back by the client.
async fn dropped(client: &mut Client) -> Result<Value, Failure> {
    let controller = client.controller().await?;
    let mut sender = client.sender("q").await?;
    {
        let transaction = Transaction::declare(&controller, None).await?;
        accepted(transaction.post(&mut sender, "dropped".to_string()).await?)?;
    }
    // not on the same control link: the client gives its next delivery the tag of the discharge it sent on the way out
    controller.close().await?;
    let controller = client.controller().await?;
    let transaction = Transaction::declare(&controller, None).await?;
    accepted(transaction.post(&mut sender, "committed".to_string()).await?)?;
    transaction.commit().await?;
    sender.close().await?;
    controller.close().await?;
    Ok(json!({"left": client.take_all("q").await?}))
}

/// Accepts `count` messages.
async fn take(receiver: &mut Receiver, count: usize) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let delivery = receiver.recv::<String>().await?;
        receiver.accept(&delivery).await?;
        texts.push(delivery.into_body());
    }
    Ok(texts)
}

async fn settled(client: &mut Client) -> Result<Value, Failure> {
    let (link, address) = (client.link(), client.address("q"));
    let mut sender = Sender::builder()
        .name(link)
        .target(address)
        .sender_settle_mode(SenderSettleMode::Settled)
        .attach(&mut client.session)
        .await?;
    for i in 0..3 {
        sender.send(format!("m{i}")).await?;
    }
    sender.close().await?;
    Ok(json!({"left": client.take_all("q").await?}))
}

async fn browse(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["m0", "m1", "m2"]).await?;
    let link = client.link();
    let source = Source::builder().address(client.address("q")).distribution_mode(DistributionMode::Copy).build();
    let mut browser = Receiver::builder().name(link).source(source).attach(&mut client.session).await?;
    let browsed = take(&mut browser, 3).await?;
    browser.close().await?;
    Ok(json!({"browsed": browsed, "left": client.take_all("q").await?}))
}

/// An address that lives as long as its link.
async fn dynamic(client: &mut Client) -> Result<Value, Failure> {
    let link = client.link();
    let source = Source::builder().dynamic(true).build();
    let mut replies = Receiver::builder().name(link).source(source).attach(&mut client.session).await?;
    let address = replies.source().as_ref().and_then(|source| source.address.clone()).ok_or("no address was made")?;
    let link = client.link();
    let mut sender = Sender::attach(&mut client.session, link, address.clone()).await?;
    accepted(sender.send("reply".to_string()).await?)?;
    sender.close().await?;
    let received = take(&mut replies, 1).await?;
    replies.close().await?;
    let link = client.link();
    let after = Sender::attach(&mut client.session, link, address).await;
    Ok(json!({"received": received, "after": if after.is_ok() { "attached" } else { "refused" }}))
}

/// The anonymous relay: each message says where to.
async fn relay(client: &mut Client) -> Result<Value, Failure> {
    let link = client.link();
    let target = Target::builder().build();
    let mut sender = Sender::builder().name(link).target(target).attach(&mut client.session).await?;
    for name in ["a", "b"] {
        let message = Message::builder()
            .properties(Properties::builder().to(client.address(name)).build())
            .value(format!("to {name}"))
            .build();
        accepted(sender.send(message).await?)?;
    }
    let nowhere = sender.send("without to".to_string()).await?;
    sender.close().await?;
    Ok(json!({
        "nowhere": matches!(nowhere, Outcome::Rejected(_)),
        "a": client.take_all("a").await?,
        "b": client.take_all("b").await?,
    }))
}

async fn groups(client: &mut Client) -> Result<Value, Failure> {
    let mut billing = client.receiver("q::billing").await?;
    let mut shipping = client.receiver("q::shipping").await?;
    client.send("q", &["m0", "m1"]).await?;
    let seen = (take(&mut billing, 2).await?, take(&mut shipping, 2).await?);
    billing.close().await?;
    shipping.close().await?;
    Ok(json!({"billing": seen.0, "shipping": seen.1, "default": client.take_all("q").await?}))
}

async fn expiration(client: &mut Client) -> Result<Value, Failure> {
    let mut sender = client.sender("q").await?;
    for (text, ttl) in [("brief", 1), ("lasting", 3_600_000)] {
        let header = Header { ttl: Some(ttl), ..Header::default() };
        accepted(sender.send(Message::builder().header(header).value(text.to_string()).build()).await?)?;
    }
    sender.close().await?;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    Ok(json!({"left": client.take_all("q").await?}))
}

async fn dead_letters(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["bad"]).await?;
    let mut receiver = client.receiver("q").await?;
    let bad = receiver.recv::<String>().await?;
    receiver.reject(&bad, None).await?;
    receiver.close().await?;
    let (link, address) = (client.link(), format!("%DLQ%{}", client.address("q")));
    let mut letters = Receiver::attach(&mut client.session, link, address).await?;
    let texts = take(&mut letters, 1).await?;
    letters.close().await?;
    Ok(json!({"letters": texts, "left": client.take_all("q").await?}))
}

fn capabilities(names: &[&str]) -> Array<Symbol> {
    Array(names.iter().map(|name| Symbol::from(*name)).collect())
}

/// A lasting subscription gets what came while its connection was away; with one that is shared.
async fn subscription(client: &mut Client, url: &str) -> Result<Value, Failure> {
    let target = Target::builder().address(client.address("t")).capabilities(capabilities(&["topic"])).build();
    let link = client.link();
    let mut sender = Sender::builder().name(link).target(target).attach(&mut client.session).await?;
    let address = client.address("t");
    let source = |kind: &[&str]| {
        Source::builder()
            .address(address.clone())
            .capabilities(capabilities(kind))
            .expiry_policy(TerminusExpiryPolicy::Never)
            .build()
    };
    let mut seen = Vec::new();
    for round in ["first", "away"] {
        if round == "away" {
            accepted(sender.send(round.to_string()).await?)?;
        }
        let mut connection = Connection::open("fe2o3-reader", url).await?;
        let mut session = Session::begin(&mut connection).await?;
        let mut receiver =
            Receiver::builder().name("prices").source(source(&["topic"])).attach(&mut session).await?;
        if round == "first" {
            accepted(sender.send(round.to_string()).await?)?;
        }
        seen.push(take(&mut receiver, 1).await?);
        receiver.detach().await.map_err(|(_, error)| error)?;
        session.end().await?;
        connection.close().await?;
    }
    let kind = ["topic", "shared", "global"];
    let mut members = Vec::new();
    for name in ["quotes|1", "quotes|2"] {
        members.push(Receiver::builder().name(name).source(source(&kind)).attach(&mut client.session).await?);
    }
    accepted(sender.send("m0".to_string()).await?)?;
    let [first, second] = members.as_mut_slice() else { unreachable!() };
    let one = tokio::select! {
        texts = take(first, 1) => texts?,
        texts = take(second, 1) => texts?,
    };
    for member in members {
        member.close().await?;
    }
    sender.close().await?;
    Ok(json!({"lasting": seen, "shared": one}))
}

/// A sender that is detached while its posts are under way, and resumed.
async fn resume(client: &mut Client) -> Result<Value, Failure> {
    let mut sender = client.sender("q").await?;
    let mut answers = Vec::new();
    for i in 0..20 {
        answers.push(sender.send_batchable(format!("m{i}")).await?);
    }
    let detached = sender.detach().await.map_err(|(_, error)| error)?;
    let mut sender = detached.resume().await?;
    for answer in answers {
        accepted(answer.await?)?;
    }
    accepted(sender.send("after".to_string()).await?)?;
    sender.close().await?;
    Ok(json!({"left": client.take_all("q").await?}))
}

/// A receiver that is detached before its delivery is accepted, and resumed with what is accepted by then.
async fn recover(client: &mut Client) -> Result<Value, Failure> {
    client.send("q", &["m0", "m1"]).await?;
    let mut receiver = Receiver::builder()
        .name("recover")
        .source(client.address("q"))
        .receiver_settle_mode(ReceiverSettleMode::Second)
        .credit_mode(CreditMode::Manual)
        .attach(&mut client.session)
        .await?;
    receiver.set_credit(1).await?;
    let first = receiver.recv::<String>().await?;
    let disposer = receiver.disposer();
    let detached = receiver.detach().await.map_err(|(_, error)| error)?;
    disposer.accept(&first).await?;
    let mut receiver = match detached.resume().await? {
        ResumingReceiver::Complete(receiver)
        | ResumingReceiver::IncompleteUnsettled(receiver)
        | ResumingReceiver::Resume(receiver) => receiver,
    };
    receiver.set_credit(1).await?;
    let second = receiver.recv::<String>().await?;
    receiver.accept(&second).await?;
    receiver.close().await?;
    let seen = [first.into_body(), second.into_body()];
    Ok(json!({"seen": seen, "left": client.take_all("q").await?}))
}

/// A producer that comes again on another connection and counts its tags from 0, as each sender of this library does.
async fn producer(client: &mut Client, url: &str) -> Result<Value, Failure> {
    let mut properties = OrderedMap::new();
    properties.insert(Symbol::from("coordinator:producer"), Amqp::String("run-1".to_string()));
    for up_to in [2, 4] {
        let mut other = Client::open(&client.case, url).await?;
        let mut sender = Sender::builder()
            .name("producer")
            .target(other.address("q"))
            .properties(properties.clone())
            .attach(&mut other.session)
            .await?;
        for i in 0..up_to {
            accepted(sender.send(format!("m{i}")).await?)?;
        }
        sender.close().await?;
        other.close().await?;
    }
    Ok(json!({"left": client.take_all("q").await?}))
}

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/Azure/go-amqp"
)

type seen = map[string]any

var cases = map[string]func(context.Context, *client) (seen, error){
	"send-and-receive": sendAndReceive,
	"outcomes":         outcomes,
	"receipts":         receipts,
	"credit":           credit,
	"drain":            drain,
	"settled":          settled,
	"dynamic":          dynamic,
	"subscription":     subscription,
	"shared":           shared,
	"groups":           groups,
	"browse":           browse,
	"relay":            relay,
	"expiration":       expiration,
	"dead-letters":     deadLetters,
}

// logins have no connection before they log in.
var logins = map[string]func(context.Context, string) (seen, error){
	"login":       login,
	"permissions": permissions,
}

// client has a connection with one session, and the addresses of one case.
type client struct {
	name    string
	url     string
	conn    *amqp.Conn
	session *amqp.Session
}

func run(ctx context.Context, name, url string) (seen, error) {
	if login, found := logins[name]; found {
		return login(ctx, url)
	}
	conn, err := amqp.Dial(ctx, url, &amqp.ConnOptions{ContainerID: "go-amqp-" + name})
	if err != nil {
		return nil, err
	}
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return nil, err
	}
	result, err := cases[name](ctx, &client{name, url, conn, session})
	if err != nil {
		return nil, err
	}
	return result, conn.Close()
}

// login as the environment says; the library has PLAIN and EXTERNAL, and no SCRAM.
func login(ctx context.Context, url string) (seen, error) {
	options := &amqp.ConnOptions{}
	switch os.Getenv("LOGIN_MECHANISM") {
	case "PLAIN":
		options.SASLType = amqp.SASLTypePlain(os.Getenv("LOGIN_USER"), os.Getenv("LOGIN_PASSWORD"))
	case "EXTERNAL":
		options.SASLType = amqp.SASLTypeExternal("")
	default:
		return nil, errors.New("no such mechanism")
	}
	if os.Getenv("LOGIN_CA") != "" {
		config, err := loginTLS()
		if err != nil {
			return nil, err
		}
		options.TLSConfig = config
	}
	conn, err := amqp.Dial(ctx, url, options)
	if err != nil {
		return seen{"refused": err.Error()}, nil
	}
	return seen{"in": true}, conn.Close()
}

// permissions is what a user gets at an address that is not its own, and at its own: links, and posts on the relay.
func permissions(ctx context.Context, url string) (seen, error) {
	others, own := os.Getenv("LOGIN_ADDRESS"), os.Getenv("LOGIN_OWN")
	plain := amqp.SASLTypePlain(os.Getenv("LOGIN_USER"), os.Getenv("LOGIN_PASSWORD"))
	conn, err := amqp.Dial(ctx, url, &amqp.ConnOptions{SASLType: plain})
	if err != nil {
		return nil, err
	}
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return nil, err
	}
	result := seen{}
	_, err = session.NewSender(ctx, others, nil)
	result["send"] = fmt.Sprint(err)
	_, err = session.NewReceiver(ctx, others, nil)
	result["receive"] = fmt.Sprint(err)
	relay, err := session.NewSender(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	message := amqp.NewMessage([]byte("permitted"))
	message.Properties = &amqp.MessageProperties{To: &others}
	result["post"] = fmt.Sprint(relay.Send(ctx, message, nil))
	message.Properties.To = &own
	if err := relay.Send(ctx, message, nil); err != nil {
		return nil, err
	}
	receiver, err := session.NewReceiver(ctx, own, nil)
	if err != nil {
		return nil, err
	}
	if result["own"], err = take(ctx, receiver, 1); err != nil {
		return nil, err
	}
	return result, conn.Close()
}

func loginTLS() (*tls.Config, error) {
	authority, err := os.ReadFile(os.Getenv("LOGIN_CA"))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if file := os.Getenv("LOGIN_CERTIFICATE"); file != "" {
		certificate, err := tls.LoadX509KeyPair(file, os.Getenv("LOGIN_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

func (c *client) address(name string) string { return "go." + c.name + "." + name }

func (c *client) send(ctx context.Context, name string, options *amqp.SenderOptions, texts ...string) error {
	sender, err := c.session.NewSender(ctx, c.address(name), options)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if err := sender.Send(ctx, amqp.NewMessage([]byte(text)), nil); err != nil {
			return err
		}
	}
	return sender.Close(ctx)
}

// takeUntil accepts up to and with the text last.
func takeUntil(ctx context.Context, receiver *amqp.Receiver, last string) ([]string, error) {
	texts := []string{}
	for {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return nil, err
		}
		if err := receiver.AcceptMessage(ctx, message); err != nil {
			return nil, err
		}
		texts = append(texts, string(message.GetData()))
		if texts[len(texts)-1] == last {
			return texts, nil
		}
	}
}

// takeAll is everything left in a queue: a mark is sent behind it and all before the mark is taken.
func (c *client) takeAll(ctx context.Context, name string) ([]string, error) {
	if err := c.send(ctx, name, nil, "end"); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address(name), &amqp.ReceiverOptions{Credit: 100})
	if err != nil {
		return nil, err
	}
	texts, err := takeUntil(ctx, receiver, "end")
	if err != nil {
		return nil, err
	}
	return texts[:len(texts)-1], receiver.Close(ctx)
}

func sendAndReceive(ctx context.Context, c *client) (seen, error) {
	sender, err := c.session.NewSender(ctx, c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	subject, id := "a subject", "an id"
	sent := &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true},
		Properties:            &amqp.MessageProperties{MessageID: id, Subject: &subject},
		ApplicationProperties: map[string]any{"number": int64(7), "text": "seven"},
		Data:                  [][]byte{bytes.Repeat([]byte("x"), 1_000_000)},
	}
	if err := sender.Send(ctx, sent, nil); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	message, err := receiver.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := receiver.AcceptMessage(ctx, message); err != nil {
		return nil, err
	}
	if err := receiver.Close(ctx); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	return seen{
		"body":    bytes.Equal(message.GetData(), sent.GetData()),
		"durable": message.Header.Durable,
		"id":      message.Properties.MessageID,
		"subject": message.Properties.Subject,
		"number":  message.ApplicationProperties["number"],
		"text":    message.ApplicationProperties["text"],
		"left":    left,
	}, err
}

func outcomes(ctx context.Context, c *client) (seen, error) {
	if err := c.send(ctx, "q", nil, "released", "failed", "rejected"); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), nil) // a credit of 1: one after the other
	if err != nil {
		return nil, err
	}
	came := [][]any{}
	before := map[string]bool{}
	for i := 0; i < 5; i++ {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return nil, err
		}
		var count uint32
		if message.Header != nil {
			count = message.Header.DeliveryCount
		}
		came = append(came, []any{string(message.GetData()), count})
		text := string(message.GetData())
		first := !before[text]
		before[text] = true
		switch {
		case text == "released" && first:
			err = receiver.ReleaseMessage(ctx, message)
		case text == "failed" && first:
			err = receiver.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true})
		case text == "rejected":
			err = receiver.RejectMessage(ctx, message, &amqp.Error{Condition: "acceptance:bad", Description: "bad"})
		default:
			err = receiver.AcceptMessage(ctx, message)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := receiver.Close(ctx); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	return seen{"came": came, "left": left}, err
}

// receipts sends without waiting for each answer, and looks at the answers after.
func receipts(ctx context.Context, c *client) (seen, error) {
	sender, err := c.session.NewSender(ctx, c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	waiting := []amqp.SendReceipt{}
	for i := 0; i < 500; i++ {
		receipt, err := sender.SendWithReceipt(ctx, amqp.NewMessage([]byte(fmt.Sprint(i))), nil)
		if err != nil {
			return nil, err
		}
		waiting = append(waiting, receipt)
	}
	accepted := 0
	for i := range waiting {
		state, err := waiting[i].Wait(ctx)
		if err != nil {
			return nil, err
		}
		if _, ok := state.(*amqp.StateAccepted); ok {
			accepted++
		}
	}
	received, err := c.takeAll(ctx, "q")
	inOrder := true
	for i, text := range received {
		inOrder = inOrder && text == fmt.Sprint(i)
	}
	return seen{"accepted": accepted, "received": len(received), "in_order": inOrder}, err
}

// credit gives some of what is there, and no more; the rest is another's.
func credit(ctx context.Context, c *client) (seen, error) {
	if err := c.send(ctx, "q", nil, "m0", "m1", "m2"); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), &amqp.ReceiverOptions{Credit: -1})
	if err != nil {
		return nil, err
	}
	if err := receiver.IssueCredit(2); err != nil {
		return nil, err
	}
	texts, err := takeUntil(ctx, receiver, "m1")
	if err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	if err != nil {
		return nil, err
	}
	prefetched := receiver.Prefetched() != nil
	return seen{"received": texts, "left": left, "prefetched": prefetched}, receiver.Close(ctx)
}

// drain takes back credit that nothing used, with messages in between, and again where there is none.
func drain(ctx context.Context, c *client) (seen, error) {
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), &amqp.ReceiverOptions{Credit: -1})
	if err != nil {
		return nil, err
	}
	if err := receiver.IssueCredit(5); err != nil {
		return nil, err
	}
	if err := receiver.DrainCredit(ctx, nil); err != nil {
		return nil, err
	}
	if err := c.send(ctx, "q", nil, "m0"); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	if err != nil {
		return nil, err
	}
	err = receiver.DrainCredit(ctx, nil)
	return seen{"left": left}, err
}

// settled sends and receives settled: at most once.
func settled(ctx context.Context, c *client) (seen, error) {
	options := &amqp.SenderOptions{SettlementMode: amqp.SenderSettleModeSettled.Ptr()}
	if err := c.send(ctx, "q", options, "m0", "m1", "m2"); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), &amqp.ReceiverOptions{
		RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	if err != nil {
		return nil, err
	}
	texts := []string{}
	for i := 0; i < 3; i++ {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(message.GetData()))
	}
	if err := receiver.Close(ctx); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	return seen{"received": texts, "left": left}, err
}

// dynamic has replies come to an address that lives as long as its link; then the address is not there.
func dynamic(ctx context.Context, c *client) (seen, error) {
	receiver, err := c.session.NewReceiver(ctx, "", &amqp.ReceiverOptions{DynamicAddress: true})
	if err != nil {
		return nil, err
	}
	sender, err := c.session.NewSender(ctx, receiver.Address(), nil)
	if err != nil {
		return nil, err
	}
	if err := sender.Send(ctx, amqp.NewMessage([]byte("reply")), nil); err != nil {
		return nil, err
	}
	texts, err := takeUntil(ctx, receiver, "reply")
	if err != nil {
		return nil, err
	}
	address := receiver.Address()
	if err := receiver.Close(ctx); err != nil {
		return nil, err
	}
	_, err = c.session.NewSender(ctx, address, nil)
	var refused *amqp.Error
	if !errors.As(err, &refused) {
		return nil, fmt.Errorf("expected the link to be refused, got %v", err)
	}
	return seen{"received": texts, "after": refused.Condition}, nil
}

// subscription is a lasting one to a topic; what comes while its connection is away waits for it.
func subscription(ctx context.Context, c *client) (seen, error) {
	topic := &amqp.SenderOptions{TargetCapabilities: []string{"topic"}}
	options := &amqp.ReceiverOptions{
		Name:               "prices",
		SourceCapabilities: []string{"topic"},
		SourceDurability:   amqp.DurabilityUnsettledState,
		SourceExpiryPolicy: amqp.ExpiryPolicyNever,
	}
	shop := &amqp.ConnOptions{ContainerID: "go-amqp-shop"}
	result := seen{}
	for _, round := range []string{"first", "away"} {
		if round == "away" {
			if err := c.send(ctx, "t", topic, round); err != nil {
				return nil, err
			}
		}
		conn, err := amqp.Dial(ctx, c.url, shop)
		if err != nil {
			return nil, err
		}
		session, err := conn.NewSession(ctx, nil)
		if err != nil {
			return nil, err
		}
		receiver, err := session.NewReceiver(ctx, c.address("t"), options)
		if err != nil {
			return nil, err
		}
		if round == "first" {
			if err := c.send(ctx, "t", topic, round); err != nil {
				return nil, err
			}
		}
		if result[round], err = takeUntil(ctx, receiver, round); err != nil {
			return nil, err
		}
		if err := conn.Close(); err != nil { // without detaching: the subscription lasts
			return nil, err
		}
	}
	return result, nil
}

// take accepts count messages.
func take(ctx context.Context, receiver *amqp.Receiver, count int) ([]string, error) {
	texts := []string{}
	for len(texts) < count {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return nil, err
		}
		if err := receiver.AcceptMessage(ctx, message); err != nil {
			return nil, err
		}
		texts = append(texts, string(message.GetData()))
	}
	return texts, nil
}

// shared is two links of one subscription, which share what comes.
func shared(ctx context.Context, c *client) (seen, error) {
	members := []*amqp.Receiver{}
	for _, name := range []string{"prices|1", "prices|2"} {
		member, err := c.session.NewReceiver(ctx, c.address("t"), &amqp.ReceiverOptions{
			Name:               name,
			SourceCapabilities: []string{"topic", "shared", "global"},
			SourceExpiryPolicy: amqp.ExpiryPolicyNever,
		})
		if err != nil {
			return nil, err
		}
		members = append(members, member)
	}
	topic := &amqp.SenderOptions{TargetCapabilities: []string{"topic"}}
	if err := c.send(ctx, "t", topic, "m0", "m1"); err != nil {
		return nil, err
	}
	received := []string{}
	for _, member := range members {
		texts, err := take(ctx, member, 1)
		if err != nil {
			return nil, err
		}
		received = append(received, texts...)
	}
	sort.Strings(received)
	for _, member := range members {
		if err := member.Close(ctx); err != nil {
			return nil, err
		}
	}
	return seen{"shared": received}, nil
}

// groups of a queue have every message each.
func groups(ctx context.Context, c *client) (seen, error) {
	result := seen{}
	members := map[string]*amqp.Receiver{}
	for _, group := range []string{"billing", "shipping"} {
		member, err := c.session.NewReceiver(ctx, c.address("q")+"::"+group, nil)
		if err != nil {
			return nil, err
		}
		members[group] = member
	}
	if err := c.send(ctx, "q", nil, "m0", "m1"); err != nil {
		return nil, err
	}
	for group, member := range members {
		texts, err := take(ctx, member, 2)
		if err != nil {
			return nil, err
		}
		result[group] = texts
	}
	left, err := c.takeAll(ctx, "q")
	result["default"] = left
	return result, err
}

// browse looks and takes nothing.
func browse(ctx context.Context, c *client) (seen, error) {
	if err := c.send(ctx, "q", nil, "m0", "m1", "m2"); err != nil {
		return nil, err
	}
	browser, err := c.session.NewReceiver(ctx, c.address("q"), &amqp.ReceiverOptions{
		Credit:                 10,
		SourceDistributionMode: amqp.SourceDistributionModeCopy,
	})
	if err != nil {
		return nil, err
	}
	browsed, err := take(ctx, browser, 3)
	if err != nil {
		return nil, err
	}
	if err := browser.Close(ctx); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	return seen{"browsed": browsed, "left": left}, err
}

// relay sends without an address of the link: each message says where to.
func relay(ctx context.Context, c *client) (seen, error) {
	sender, err := c.session.NewSender(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	result := seen{}
	for _, name := range []string{"a", "b"} {
		to := c.address(name)
		message := amqp.NewMessage([]byte("to " + name))
		message.Properties = &amqp.MessageProperties{To: &to}
		if err := sender.Send(ctx, message, nil); err != nil {
			return nil, err
		}
	}
	var refused *amqp.Error
	if err := sender.Send(ctx, amqp.NewMessage([]byte("without to")), nil); !errors.As(err, &refused) {
		return nil, fmt.Errorf("expected the message to be rejected, got %v", err)
	}
	result["nowhere"] = refused.Condition
	for _, name := range []string{"a", "b"} {
		if result[name], err = c.takeAll(ctx, name); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// expiration: what has expired is not delivered.
func expiration(ctx context.Context, c *client) (seen, error) {
	sender, err := c.session.NewSender(ctx, c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	for text, ttl := range map[string]time.Duration{"brief": time.Millisecond, "lasting": time.Hour} {
		message := amqp.NewMessage([]byte(text))
		message.Header = &amqp.MessageHeader{TTL: ttl, Priority: 4} // as where nothing is said; go-amqp would say 0
		if err := sender.Send(ctx, message, nil); err != nil {
			return nil, err
		}
	}
	time.Sleep(20 * time.Millisecond)
	left, err := c.takeAll(ctx, "q")
	return seen{"left": left}, err
}

// deadLetters has what was rejected.
func deadLetters(ctx context.Context, c *client) (seen, error) {
	if err := c.send(ctx, "q", nil, "bad"); err != nil {
		return nil, err
	}
	receiver, err := c.session.NewReceiver(ctx, c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	message, err := receiver.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := receiver.RejectMessage(ctx, message, &amqp.Error{Condition: "acceptance:bad"}); err != nil {
		return nil, err
	}
	letters, err := c.session.NewReceiver(ctx, "%DLQ%"+c.address("q"), nil)
	if err != nil {
		return nil, err
	}
	texts, err := take(ctx, letters, 1)
	if err != nil {
		return nil, err
	}
	if err := receiver.Close(ctx); err != nil {
		return nil, err
	}
	left, err := c.takeAll(ctx, "q")
	return seen{"letters": texts, "left": left}, err
}

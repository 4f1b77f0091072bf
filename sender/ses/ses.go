// Package ses sends email over Amazon SES, by SendEmail of API v2: one request for
// each recipient, on package wire. It guarantees that a receipt states only what the
// answer proves.
//
// A message is sent as raw MIME, as package mime writes it, so that SES signs our
// headers, such as List-Unsubscribe, by DKIM. SES replaces Message-ID and Date. The
// tags lemma_ntf and lemma_attempt name the notification and the attempt: SES returns
// them in the events of a configuration set.
//
// Two attempts send the same mail. The tag of the attempt and the signature differ.
//
// The closed table of outcomes follows, by the type of an error and the status. The
// table of package wire is for calls without an answer.
//
//	answer                                                  outcome        provider  reason
//	2xx with a MessageId                                    accepted       no        (none)
//	2xx without one                                         unknown        no        protocol_error
//	MessageRejected                                         rejected       no        message_rejected
//	MessageRejected: the sender is not verified             not accepted   yes       sender_rejected; definite
//	MessageRejected: only the recipient is not verified     rejected       no        recipient_rejected
//	BadRequestException, ValidationError                    rejected       no        message_invalid
//	ValidationException, MalformedHttpRequestException      rejected       no        message_invalid
//	RequestEntityTooLargeException, 413                     rejected       no        message_too_large
//	MailFromDomainNotVerifiedException                      not accepted   yes       sender_rejected; definite
//	AccountSuspendedException                               not accepted   yes       account_suspended; definite
//	SendingPausedException                                  not accepted   yes       sending_paused; definite
//	NotFoundException                                       not accepted   yes       not_found; definite
//	UnknownOperationException                               not accepted   yes       not_found; definite
//	AccessDeniedException, AccessDenied, NotAuthorized      not accepted   yes       access_denied; definite
//	OptInRequired                                           not accepted   yes       access_denied; definite
//	ExpiredTokenException, ExpiredToken                     not accepted   yes       credentials_refused; definite
//	UnrecognizedClientException, InvalidClientTokenId       not accepted   yes       credentials_refused; definite
//	InvalidSignatureException, SignatureDoesNotMatch        not accepted   yes       credentials_refused; definite
//	IncompleteSignature, MissingAuthenticationToken         not accepted   yes       credentials_refused; definite
//	these, since the signature's time is wrong              not accepted   yes       clock_skew
//	RequestExpired                                          not accepted   yes       clock_skew
//	TooManyRequestsException, ThrottlingException           not accepted   yes       throttled
//	Throttling, 429                                         not accepted   yes       throttled
//	LimitExceededException                                  not accepted   yes       limit_exceeded
//	ServiceUnavailable, 503                                 not accepted   yes       unavailable
//	RequestTimeoutException, 408                            not accepted   no        request_refused
//	other types, and other 4xx                              not accepted   no        request_refused
//	401, 403 without a type                                 not accepted   yes       access_denied; definite
//	3xx: not followed                                       not accepted   yes       redirected
//	InternalFailure, InternalServiceErrorException          unknown        no        server_error
//	RequestAbortedException, other 5xx                      unknown        no        server_error
//
// A receipt shows the type and message of an error, without the recipient's address.
//
// Amazon SES publishes the events of the configuration set to a topic of Amazon SNS,
// which sends them to Lemma. Package ses/sns checks that they come from the topic. What
// they report:
//
//	event                                           report        proves
//	Send                                            accepted      acceptance
//	Delivery                                        delivered     acceptance
//	DeliveryDelay                                   delayed       acceptance
//	Bounce, Permanent                               bounced       acceptance
//	Bounce, Permanent, UnsubscribedRecipient        unsubscribed  acceptance
//	Bounce, Transient, General or MailboxFull       soft_bounced  acceptance
//	Bounce, other                                   undelivered   acceptance
//	Complaint                                       complained    acceptance
//	Complaint with the feedback type not-spam       (none)
//	Open                                            opened        acceptance
//	Click                                           clicked       acceptance
//	Subscription that unsubscribes from all topics  unsubscribed  acceptance
//	Subscription, other                             (none)
//	Reject, Rendering Failure                       rejected      rejection
//	other                                           (none)
//
// After Reject and Rendering Failure, Amazon SES has discarded the message. The id of a
// report is the MessageId of Amazon SNS, which stays the same when a message is sent
// again.
package ses

import (
	"net/url"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"lemma"
	"lemma/sender"
	"lemma/sender/mime"
	"lemma/sender/ses/sns"
	"lemma/sender/wire"
)

// Kind is email over Amazon SES. It has no capabilities: SES does not recognise a
// repeated message, and reports events only where a topic is configured.
func Kind(o wire.Operator) sender.Kind {
	return KindOver(o, sns.NewClient(sns.Options{AllowPrivate: o.AllowPrivate, Roots: o.Roots}))
}

// KindOver is Kind with another client of Amazon SNS, for tests and benchmarks.
func KindOver(o wire.Operator, client *sns.Client) sender.Kind {
	return sender.Kind{Name: "ses", Channels: []lemma.Channel{lemma.Email}, Moves: Moves, Warnings: Warnings,
		Check:    wire.Check(o, parse),
		Open:     func(a sender.Account) (sender.Carrier, error) { return open(a, o) },
		Receiver: func(a sender.Account) (sender.Receiver, error) { return receive(a, o, client) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	url    *url.URL
	signer *v4.Signer
	keys   aws.Credentials
	drafts sync.Pool // of *draft
}

// draft has the buffers for one request.
type draft struct {
	writer     mime.Writer
	mail, body []byte
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	to := &url.URL{Scheme: s.endpoint.Scheme, Host: s.endpoint.Host, Path: "/v2/email/outbound-emails"}
	return &carrier{settings: s, url: to, signer: v4.NewSigner(),
		Client: wire.New(o.Options(a, s.timeout, s.most)),
		keys:   aws.Credentials{AccessKeyID: s.accessKeyID, SecretAccessKey: s.secretKey, SessionToken: s.sessionToken},
		drafts: sync.Pool{New: func() any { return &draft{} }}}, nil
}

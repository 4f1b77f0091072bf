package message

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/google/uuid"
)

const testPixel = "https://t/o/1"

// tracking shows what is signed: the number and the URL.
var testTracking = Tracking{Open: testPixel, Own: "https://lemma/u/", Click: func(number int, url string) string {
	return "https://t/c/" + strconv.Itoa(number) + "?" + url
}}

func renderTracked(t *testing.T, source, payload string, track Track) (plain, tracked string, err error) {
	t.Helper()
	c, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source, Text: "t"})
	if err != nil {
		return "", "", err
	}
	before, _, err := c.RenderMessage(payload, "")
	if err != nil {
		return "", "", err
	}
	marked, err := c.Tracked(track)
	if err != nil {
		t.Fatal(err)
	}
	same(t, marked, payload)
	after, _, err := marked.RenderTracked(payload, "", testTracking, MaxWait)
	if err != nil {
		t.Fatalf("%q renders, and tracked it does not: %v", source, err)
	}
	if again, _, err := marked.RenderTracked(payload, "", testTracking, MaxWait); err != nil || again.HTML != after.HTML {
		t.Fatalf("two renderings of %q differ: %v", source, err)
	}
	if left, _, err := marked.RenderMessage(payload, ""); err != nil || left.HTML != before.HTML {
		t.Fatalf("%q becomes %q, without tracking %q", source, left.HTML, before.HTML)
	}
	return before.HTML, after.HTML, nil
}

func TestLinksAreReplaced(t *testing.T) {
	t.Parallel()
	payload := `{"url":"https://shop/?a=1&b=2","path":"x","nothing":"","yes":true,"list":["a","b"]}`
	for source, want := range map[string]string{
		`<a href="https://shop/">x</a>`: `<a href="https://t/c/0?https://shop/">x</a>`,
		`<A class=c HREF='http://shop/' id=i>x</A>`: `<A class=c HREF='https://t/c` +
			`/0?http://shop/' id=i>x</A>`,
		`<a href=https://shop/>x</a>`:     `<a href=https://t/c/0?https://shop/>x</a>`,
		`<area href = "https://shop/" />`: `<area href = "https://t/c/0?https://shop/" />`,
		`<a href="{{ url }}">x</a>`: `<a href="https://t/c/0?https` +
			`://shop/?a=1&amp;b=2">x</a>`,
		`<a href=" https://shop/{{ path }} ">`: `<a href="https://t/c/0?https://shop/x">`,
		`<a href="https://s/?a=1&copy=2&amp;c">`: `<a href="https://t/c/0?https` +
			`://s/?a=1&amp;copy=2&amp;c">`,
		`<a href="{% if yes %}https://a/{% else %}https://b/{% endif %}">`:      `<a href="https://t/c/0?https://a/">`,
		`<a {% if yes %}href="https://a/"{% else %}href="https://b/"{%endif%}>`: `<a href="https://t/c/0?https://a/">`,
		`{% for i in list %}<a href="https://{{ i }}/">{% endfor %}`: `<a href="https://t/c/0?https://a/">` +
			`<a href="https://t/c/0?https://b/">`,
		`<a href="https://a/"><a href="https://b/">`: `<a href="https://t/c/0?https://a/">` +
			`<a href="https://t/c/1?https://b/">`,
		`<a data-x="{{ url }} >" href="https://a/">`: `<a data-x="https://shop/?a=1&amp;b=2` +
			` >" href="https://t/c/0?https://a/">`,
	} {
		if _, got, err := renderTracked(t, source, payload, Track{Clicks: true}); err != nil || got != want {
			t.Errorf("%s\nbecomes %s, %v\nwant    %s", source, got, err, want)
		}
	}
}

func TestWhatIsNotReplaced(t *testing.T) {
	t.Parallel()
	payload := `{"url":"https://shop/","script":"javascript:x","mail":"mailto:a@b.c","nothing":"","yes":true,"own":"https://lemma/u/1",` +
		`"list":["a","b"]}`
	for _, source := range []string{
		`<a href="mailto:a@b.c">`, `<a href="tel:+1">`, `<a href="sms:+1">`, `<a href="#top">`, `<a href="/path">`, `<a href="//shop/">`,
		`<a href="{{ script }}">`, `<a href="{{ mail }}">`, `<a href="{{ nothing }}">`, `<a href="{{ own }}">`, `<a href="https://lemma/u/2">`,
		`<a href="https://shop/" data-lemma-track="off">`, `<a DATA-LEMMA-TRACK=off href="https://shop/">`,
		`<link href="https://shop/">`, `<img src="https://shop/">`, `<!-- <a href="https://shop/"> -->`,
		`<script>"<a href='https://shop/'>"</script>`, `<a data-href="https://shop/">`, `<a href={{ url }}>`, `<a href="">`, `<a href>`,
		`<a href="https://shop/{{ nothing }} x">`, `<a href="https://">`, `<a href="http:shop">`,
		`<a href="https://shop/` + strings.Repeat("x", MaxTracked) + `">`,
		`{% if yes %}<a href="https://a/{% else %}<a href="https://b/{% endif %}">`, `{% raw %}<a href="{{ url }}">{% endraw %}`,
		`{% for i in list %}<a href="https://a/{% endfor %}">`,
	} {
		if plain, got, err := renderTracked(t, source, payload, Track{Clicks: true}); err != nil || got != plain {
			t.Errorf("%s becomes %s, %v", source, got, err)
		}
	}
}

// The link to unsubscribe is not tracked, so it is not among the links and has no number.
func TestTheLinkToUnsubscribeIsNoLink(t *testing.T) {
	t.Parallel()
	c := compiled(t, Content{Subject: "s", Text: "t",
		HTML: `<a href="{{ unsubscribe_url }}">x</a><a href=" {{- unsubscribe_url -}} ">x</a>` +
			`<a href="https://shop/">x</a><a href="{{ url }}">x</a>`})
	if got := strings.Join(c.Links(), ", "); got != "https://shop/, {{ url }}" {
		t.Error(got)
	}
}

func TestThePixel(t *testing.T) {
	t.Parallel()
	const pixel = `<img src="` + testPixel + `" width="1" height="1" alt="" style="border:0">`
	for source, want := range map[string]string{
		`<body>x</body></html>`:                       `<body>x` + pixel + `</body></html>`,
		`<p>x</p>`:                                    `<p>x</p>` + pixel,
		`{% if yes %}<body>x</body>{% endif %}`:       `<body>x</body>` + pixel,
		`<!-- </body> --><body>x</BODY >`:             `<!-- </body> --><body>x` + pixel + `</BODY >`,
		`{% comment %}</body>{% endcomment %}x`:       `x` + pixel,
		`<a href="https://shop/">x</a></body></body>`: `<a href="https://shop/">x</a>` + pixel + `</body></body>`,
	} {
		if _, got, err := renderTracked(t, source, `{"yes":true}`, Track{Opens: true}); err != nil || got != want {
			t.Errorf("%s becomes %s, %v", source, got, err)
		}
	}
}

// Data with a NUL is refused also where marks have one.
func TestDataCannotContainMarks(t *testing.T) {
	t.Parallel()
	c, err := compiled(t, Content{Subject: "s", HTML: `{{ x }}<a href="https://a/">`, Text: "t"}).Tracked(Track{true, true})
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{`{"x":"\u0000"}`, `{"x":"\u0000AAAAAAAAAAAAl000000https://evil/"}`} {
		if got, _, err := c.RenderTracked(payload, "", testTracking, MaxWait); err == nil {
			t.Errorf("%s becomes %q", payload, got.HTML)
		}
	}
}

// A message that may be sent may be sent with links; those that do not fit stay.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	source := `{% for i in list %}<a href="https://shop/{{ i }}">x</a>{% endfor %}`
	list := `{"list":["` + strings.Repeat(`x","`, 900) + strings.Repeat("y", 60_000) + `"]}`
	plain, tracked, err := renderTracked(t, source+strings.Repeat("z", 200_000), list, Track{true, true})
	if err != nil || len(tracked) <= len(plain) {
		t.Errorf("%d bytes, tracked %d, %v", len(plain), len(tracked), err)
	}
}

func TestWhatIsTracked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		Content
		transactional bool
		want          Track
	}{
		{Content{HTML: "x"}, false, Track{true, true}},
		{Content{HTML: "x"}, true, Track{}},
		{Content{HTML: "x", TrackOpens: Off}, false, Track{Clicks: true}},
		{Content{HTML: "x", TrackClicks: On}, true, Track{Clicks: true}},
		{Content{Text: "x", TrackOpens: On}, false, Track{}},
		{Content{Channel: "sms", Text: "x"}, false, Track{}},
	} {
		if got := c.Tracks(c.transactional); got != c.want {
			t.Errorf("%+v, transactional %t: %+v", c.Content, c.transactional, got)
		}
	}
}

// The tracked HTML differs from the original in hrefs and the pixel only.
func FuzzTracked(f *testing.F) {
	for _, source := range []string{`<a href="https://a/{{ x }}">b</a></body>`, `<a href='{% if x %}https://a{% else %}b{% endif %}'>`,
		`{% for i in x %}<area HREF=http://a>{% endfor %}`, `<a {% if x %}href="http://a"{% endif %} href = 'http://b'/>`, `<a href="{{- x -}} "`,
		`<a =href="http://a"/href=http://b>`, `<title><a href="http://a"></title><!--</body>`, "<a href=\"http://a\r\n\">"} {
		f.Add(source, "https://x/?a=1&b=2")
	}
	f.Fuzz(func(t *testing.T, source, x string) {
		payload := `{"x":` + strconv.QuoteToASCII(x) + `}`
		if len(source) > 4000 || strings.Contains(source, testPixel) {
			return
		}
		plain, tracked, err := renderTracked(t, source, payload, Track{true, true})
		if err != nil {
			return
		}
		const pixel = `<img src="` + testPixel + `" width="1" height="1" alt="" style="border:0">`
		if n := strings.Count(tracked, pixel); n > 1 {
			t.Fatalf("%d pixels", n)
		}
		if want, got := untracked(plain), untracked(strings.Replace(tracked, pixel, "", 1)); want != got {
			t.Fatalf("%q\nbecomes %q\nwant    %q", source, got, want)
		}
	})
}

func TestLinksThatAreTooLongAreReported(t *testing.T) {
	t.Parallel()
	long := "https://shop/" + strings.Repeat("x", MaxTracked)
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "t",
		HTML: `<a href="https://shop/">a</a><a href="` + long + `">b</a>{{ fill }}{{ fill }}{{ fill }}{{ fill }}<a href="https://shop/">c</a>`})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Tracked(Track{Clicks: true}); err != nil {
		t.Fatal(err)
	}
	for fill, want := range map[string]string{"x": "1 long_url", strings.Repeat("x", 261_000): "1 long_url, 2 large_message"} {
		var left []string
		own := testTracking
		own.Click = func(int, string) string { return "https://t/c/" + strings.Repeat("y", 3_000) }
		own.Left = func(number int, reason string) { left = append(left, strconv.Itoa(number)+" "+reason) }
		if _, _, err := c.RenderTracked(`{"fill":"`+fill+`"}`, "", own, MaxWait); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(left, ", "); got != want {
			t.Errorf("%d bytes: %s", len(fill), got)
		}
	}
}

// untracked is HTML without the links.
func untracked(text string) string {
	var b strings.Builder
	tokens := html.NewTokenizer(strings.NewReader(text))
	for tokens.Next() != html.ErrorToken {
		token := tokens.Token()
		for i, a := range token.Attr {
			if a.Key == "href" && (strings.HasPrefix(a.Val, "https://t/c/") || isWeb(strings.Trim(a.Val, htmlSpace))) {
				token.Attr[i].Val = "link"
			}
		}
		b.WriteString(token.String())
	}
	return b.String()
}

// What isPlainWeb accepts is a URL of the web. What it leaves to url.Parse may be one.
func TestPlainURLsAreOfTheWeb(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]bool{
		"https://shop.example": true, "http://shop.example/a?b=c&d=[e]#f": true, "https://SHOP-1.example?a": true, "https://a#b": true,
		"https://": false, "https:///a": false, "https://a:1/": false, "https://u@a/": false, "https://a/%zz": false, "https://a/%20": false,
		"https://a/ b": false, "https://a/\x7f": false, "https://a/ä": false, "https://ä/": false, "HTTPS://a/": false, "ftp://a/": false,
		"//a/": false, "https:a": false, "": false,
	} {
		if isPlainWeb(to) != want {
			t.Errorf("%q: not %v", to, want)
		}
	}
}

func FuzzPlainURLsAreOfTheWeb(f *testing.F) {
	for _, to := range []string{"https://shop.example/a?b#c", "http://a[/", "https://a/%zz", "https://a\\b/", "https://a#%", "https://.-/"} {
		f.Add(to)
	}
	f.Fuzz(func(t *testing.T, to string) {
		if isPlainWeb(to) && !isParsedWeb(to) {
			t.Fatalf("%q is not of the web", to)
		}
	})
}

func BenchmarkTracked(b *testing.B) {
	c, err := compiled(b, Content{Subject: "s", HTML: strings.Repeat(`<p>{{ x }}</p><a href="https://shop/?a={{ x }}">x</a>`, 20), Text: "t"}).
		Tracked(Track{true, true})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := c.RenderTracked(`{"x":"y"}`, "", testTracking, MaxWait); err != nil {
			b.Fatal(err)
		}
	}
}
